"""Loops that keep the value of the round before; the compiler loses it in lines marked so."""

import triton
import triton.language as tl


@triton.jit
def copied_first(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    for _ in range(n):
        total += previous
        previous = a  # lost
        a = a + 2
    tl.store(p, total)


@triton.jit
def copied_last(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    for _ in range(n):
        total += previous
        a = a + 2
        previous = a
    tl.store(p, total)


@triton.jit
def made_a_new_value(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    for _ in range(n):
        total += previous
        previous = a + 0
        a = a + 2
    tl.store(p, total)


@triton.jit
def copied_in_a_tuple(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    for _ in range(n):
        total += previous
        previous, a = a, a + 2  # lost
    tl.store(p, total)


@triton.jit
def started_apart(p, n):
    a = tl.load(p)
    previous = a * 0
    total = a + 1
    for _ in range(n):
        total += previous
        previous = a
        a = a + 2
    tl.store(p, total)


@triton.jit
def by_way_of_a_third_name(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    for _ in range(n):
        old = a
        a = a + 2
        total += previous
        previous = old  # lost
    tl.store(p, total)


@triton.jit
def copied_in_a_branch(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    for i in range(n):
        total += previous
        if i > 2:
            previous = a  # lost
        a = a + 2
    tl.store(p, total)


@triton.jit
def copied_while(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    while n > 0:
        total += previous
        previous = a  # lost
        a = a + 2
        n -= 1
    tl.store(p, total)


@triton.jit
def read_after_the_loop(p, n):
    a = tl.load(p)
    previous = a
    for _ in range(n):
        previous = a  # lost
        a = a + 2
    tl.store(p, a + previous)


@triton.jit
def in_an_inner_loop(p, n):
    a = tl.load(p)
    total = a + 1
    for _ in range(n):
        previous = a
        for _ in range(n):
            total += previous
            previous = a  # lost
            a = a + 1
    tl.store(p, total)


@triton.jit
def read_in_its_own_round(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    for _ in range(n):
        previous = a
        a = a + 1
        total += previous
    tl.store(p, total)


@triton.jit
def of_what_never_changes(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    for _ in range(n):
        total += previous
        previous = a
    tl.store(p, total)


@triton.jit
def unrolled(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    for _ in tl.static_range(4):
        total += previous
        previous = a
        a = a + 1
    tl.store(p, total)


@triton.jit
def running_maximum(p, n):
    m_i = tl.load(p)
    total = m_i
    alpha = m_i + 1
    for i in range(n):
        m_new = tl.maximum(m_i, tl.load(p + i))
        alpha = m_i - m_new
        total += alpha
        m_i = m_new
    tl.store(p, total)


def double(x):
    for kernel in (copied_first, copied_last, made_a_new_value, copied_in_a_tuple, started_apart,
                   by_way_of_a_third_name, copied_in_a_branch, copied_while, read_after_the_loop,
                   in_an_inner_loop, read_in_its_own_round, of_what_never_changes, unrolled,
                   running_maximum):
        kernel[(1,)](x, 5)
    return 2 * x
