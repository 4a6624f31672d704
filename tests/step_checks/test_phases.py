"""A loop's mistakes are the tiles that they leave out or visit twice."""

from grader.step_checks import phases

# 100 keys in tiles of 16, of which a tile of queries at 64 sees those before 96.
RIGHT = [(0, False), (16, False), (32, False), (48, False), (64, True), (80, True)]
GIVEN = {"N": 100, "BLOCK_N": 16}


def test_each_name_leaves_out_or_repeats_what_its_words_say():
    tiles, masks = phases.others(RIGHT, GIVEN, diagonal=64)
    begins = [at for at, _ in RIGHT]
    assert tiles["first-key-tile-skipped"] == begins[1:]
    assert tiles["last-key-tile-skipped"] == begins[:-1]
    assert tiles["first-key-tile-only"] == [0]
    assert tiles["last-full-tile-skipped"] == [0, 16, 32, 64, 80]
    assert tiles["last-tile-only"] == [64, 80]
    assert tiles["diagonal-skipped"] == [0, 16, 32, 48]
    assert tiles["diagonal-cut-short"] == begins[:-1]
    assert tiles["diagonal-twice"] == [*begins, 64, 80]
    assert masks["diagonal-unmasked"] == [(at, False) for at in begins]


def test_without_a_mask_only_the_ragged_tile_is_special():
    tiles, masks = phases.others([(0, False), (16, False), (32, True)], {"N": 40, "BLOCK_N": 16},
                                 diagonal=None)
    assert tiles["ragged-tail-skipped"] == [0, 16]
    assert tiles["ragged-tail-twice"] == [0, 16, 32, 32]
    assert masks["tail-unmasked"] == [(0, False), (16, False), (32, False)]
