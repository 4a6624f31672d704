"""The filter of system calls, carried out here as the kernel would, on both machines."""

import errno
import struct

import pytest

from grader.sandbox.supervisor import seccomp

OPEN = {"x86_64": {"read": 0, "ioctl": 16, "execve": 59, "memfd_create": 319},
        "aarch64": {"read": 63, "ioctl": 29, "execve": 221, "memfd_create": 279}}


def answer(machine: str, number: int, *arguments: int, own_account=False, architecture=None):
    """What a call gets: 0 if it is let through, or an errno."""
    architecture = architecture or seccomp.MACHINES[machine][0]
    shown = struct.pack("=iIQ6Q", number, architecture, 0, *(arguments + 6 * (0,))[:6])
    rules = list(struct.iter_unpack("HBBI", seccomp.program(machine, own_account)))
    at, held = 0, 0
    while True:
        code, skip_if, skip_else, value = rules[at]
        at += 1
        if code == seccomp.RETURN:
            return 0 if value == seccomp.ALLOW else value & 0xFFFF
        if code == seccomp.LOAD:
            held = struct.unpack_from("I", shown, value)[0]
        elif code == seccomp.AND:
            held &= value
        else:
            true = {seccomp.EQUALS: held == value, seccomp.AT_LEAST: held >= value,
                    seccomp.HAS_BITS: held & value}[code]
            at += skip_if if true else skip_else


@pytest.fixture(params=seccomp.MACHINES)
def machine(request):
    return request.param


def number(call: str, machine: str) -> int | None:
    which = list(seccomp.MACHINES).index(machine)
    return {**seccomp.REFUSED, **seccomp.CHANGES_FILES, **seccomp.OF_ITSELF_ONLY}[call][which]


@pytest.mark.parametrize("call", seccomp.REFUSED)
def test_what_reaches_out_is_refused(call, machine):
    assert answer(machine, number(call, machine), own_account=True) == 1


@pytest.mark.parametrize("call", seccomp.CHANGES_FILES)
def test_rights_and_times_are_for_those_with_an_account_of_their_own(call, machine):
    if (called := number(call, machine)) is not None:
        assert answer(machine, called, own_account=True) == 0 and answer(machine, called) == 1


@pytest.mark.parametrize("call", seccomp.OF_ITSELF_ONLY)
def test_limits_and_priorities_are_its_own(call, machine):
    called = number(call, machine)
    assert answer(machine, called) == 0
    assert 1 in (answer(machine, called, 77), answer(machine, called, 0, 77))
    assert answer(machine, called, 77, 77, own_account=True) == 0


def test_it_starts_threads_and_children_and_no_namespaces(machine):
    which = list(seccomp.MACHINES).index(machine)
    clone, clone3 = seccomp.CLONE[which], seccomp.CLONE3[which]
    assert answer(machine, clone, 0x3D0F00) == answer(machine, clone, 0x4111) == 0
    assert all(answer(machine, clone, 0x11 | new) == 1 for new in (1 << 17, 1 << 25, 1 << 28))
    assert answer(machine, clone3) == 38


def test_cuda_may_make_a_unix_socket_that_connects_and_no_other(machine):
    socket = seccomp.SOCKET[list(seccomp.MACHINES).index(machine)]
    assert answer(machine, socket, 1, 1 | 0x80000) == answer(machine, socket, 1, 5) == 0
    assert answer(machine, socket, 1, 2) == 1  # datagrams go anywhere without connecting
    assert all(answer(machine, socket, family, 1) == 1 for family in (2, 10, 16, 17))


def test_only_streams_come_in_pairs(machine):
    pair = seccomp.SOCKETPAIR[list(seccomp.MACHINES).index(machine)]
    assert answer(machine, pair, 1, 1 | 0x80000) == 0
    assert answer(machine, pair, 1, 2) == answer(machine, pair, 1, 5) == 1


def test_disk_space_is_taken_by_writing_alone(machine):
    fallocate = seccomp.FALLOCATE[list(seccomp.MACHINES).index(machine)]
    assert answer(machine, fallocate, 3, 0, 0, 1 << 40) == errno.EOPNOTSUPP


def test_all_else_is_let_through_in_the_machines_own_way_of_calling(machine):
    for called in OPEN[machine].values():
        assert answer(machine, called) == 0
        assert answer(machine, called, architecture=0x40000003) == 38  # 32-bit calls
    if machine == "x86_64":
        assert answer(machine, 1 << 30) == 38
