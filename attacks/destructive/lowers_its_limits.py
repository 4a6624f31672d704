"""Sets every limit of its own process next to nothing."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: crashed, timeout
import resource


def attack():
    for limit, number in ((resource.RLIMIT_NOFILE, 0), (resource.RLIMIT_FSIZE, 0),
                          (resource.RLIMIT_NPROC, 0), (resource.RLIMIT_STACK, 1 << 16),
                          (resource.RLIMIT_AS, 1 << 20), (resource.RLIMIT_CPU, 1)):
        resource.setrlimit(limit, (number, number))
