"""Limits the system calls of a worker, by a filter in the kernel that cannot be removed.

It closes what Landlock leaves open: networks and connections, System V shared memory and queues,
the limits and priorities of other processes, tracing, key rings, io_uring, mounts and namespaces.
A refused call fails with EPERM.  Pipes, files, threads, child processes and all that CUDA and
compilers do still work.

Source: https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

import ctypes
import errno
import platform
import struct

MACHINES = {"x86_64": (0xC000003E, 317), "aarch64": (0xC00000B7, 277)}  # AUDIT_ARCH, seccomp(2)
SET_MODE_FILTER, SPEC_ALLOW = 1, 1 << 2  # SPEC_ALLOW: or old kernels slow the process down
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
UNKNOWN, UNSUPPORTED = 0x00050000 | errno.ENOSYS, 0x00050000 | errno.EOPNOTSUPP
LOAD, AND, EQUALS, AT_LEAST, HAS_BITS, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in the data that the filter gets
X32 = 1 << 30  # numbers from here on: a second set of calls on x86-64
NEW_NAMESPACES, UNIX, STREAM, SEQPACKET = 0x7E020000, 1, 1, 5

# name: its number on x86-64 and on AArch64; None if it does not exist.
REFUSED = {
    "connect": (42, 203), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "process_madvise": (440, 440), "pidfd_getfd": (438, 438),
    "shmget": (29, 194), "shmctl": (31, 195), "shmat": (30, 196),
    "msgget": (68, 186), "msgctl": (71, 187), "msgrcv": (70, 188), "msgsnd": (69, 189),
    "semget": (64, 190), "semctl": (66, 191), "semtimedop": (220, 192), "semop": (65, 193),
    "mq_open": (240, 180), "mq_unlink": (241, 181),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268),
    "open_by_handle_at": (304, 265), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "fanotify_init": (300, 262), "inotify_add_watch": (254, 27),
    "syslog": (103, 116), "ioprio_set": (251, 30),
}
# These and the next are refused if other files and processes belong to the worker's account.
# Landlock does not cover these calls.
CHANGES_FILES = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "removexattrat": (466, 466), "file_setattr": (469, 469),
}
# name: numbers, and how many of the first arguments must be 0, which means the caller itself.
OF_ITSELF_ONLY = {
    "prlimit64": (302, 261, 1), "setpriority": (141, 140, 2), "sched_setaffinity": (203, 122, 1),
    "sched_setparam": (142, 118, 1), "sched_setscheduler": (144, 119, 1),
    "sched_setattr": (314, 274, 1), "migrate_pages": (256, 238, 1), "move_pages": (279, 239, 1),
}
FALLOCATE = (285, 47)
CLONE, CLONE3, SOCKET, SOCKETPAIR = (56, 220), (435, 435), (41, 198), (53, 199)


def confine(own_account: bool) -> tuple[str, ...]:
    """Filter the system calls of this process and its children, for good.

    own_account: nothing but the worker and its folder belongs to its account, so that ordinary
    permissions keep it from everything else.  -> what is in force: "network", "ipc", "processes";
    nothing if the system has no such filters.  no_new_privs must be set.
    """
    machine = platform.machine()
    if machine not in MACHINES or ctypes.sizeof(ctypes.c_void_p) != 8:
        return ()
    instructions = ctypes.create_string_buffer(program(machine, own_account))
    count = len(instructions) // 8
    filtering = struct.pack("HxxxxxxP", count, ctypes.addressof(instructions))
    refused = ctypes.CDLL(None).syscall(
        MACHINES[machine][1], SET_MODE_FILTER, SPEC_ALLOW, filtering)
    return () if refused else ("network", "ipc", "processes")


def program(machine: str, own_account: bool) -> bytes:
    """The filter as classic BPF."""
    which = list(MACHINES).index(machine)
    rules = [_do(LOAD, ARCHITECTURE), _do(EQUALS, MACHINES[machine][0], skip_if=1),
             _do(RETURN, UNKNOWN), _do(LOAD, NUMBER)]
    if machine == "x86_64":
        rules += [_do(AT_LEAST, X32, skip_else=1), _do(RETURN, UNKNOWN)]
    refused, of_itself_only = (REFUSED, {}) if own_account else (
        REFUSED | CHANGES_FILES, OF_ITSELF_ONLY)
    for numbers in refused.values():
        rules += _if_called(numbers[which], [_do(RETURN, REFUSE)])
    for *numbers, checked in of_itself_only.values():
        checks = [check for i in range(checked) for check in (
            _do(LOAD, ARGUMENTS + 8 * i), _do(EQUALS, 0, skip_if=1), _do(RETURN, REFUSE))]
        rules += _if_called(numbers[which], [*checks, _do(RETURN, ALLOW)])
    rules += _if_called(CLONE[which], [
        _do(LOAD, ARGUMENTS), _do(HAS_BITS, NEW_NAMESPACES, skip_else=1), _do(RETURN, REFUSE),
        _do(RETURN, ALLOW)])
    # The filter cannot see its flags.  Libraries then use clone.
    rules += _if_called(CLONE3[which], [_do(RETURN, UNKNOWN)])
    # It takes all of a disk in an instant, before the supervisor looks.  Libraries then write.
    rules += _if_called(FALLOCATE[which], [_do(RETURN, UNSUPPORTED)])
    # CUDA makes a Unix socket when it starts.  A stream that cannot connect reaches no one.
    rules += _if_called(SOCKET[which], [
        _do(LOAD, ARGUMENTS), _do(EQUALS, UNIX, skip_if=1), _do(RETURN, REFUSE),
        _do(LOAD, ARGUMENTS + 8), _do(AND, 0xF), _do(EQUALS, STREAM, skip_if=2),
        _do(EQUALS, SEQPACKET, skip_if=1), _do(RETURN, REFUSE), _do(RETURN, ALLOW)])
    # Datagram sockets of a pair can send to any other socket; streams only to each other.
    rules += _if_called(SOCKETPAIR[which], [
        _do(LOAD, ARGUMENTS + 8), _do(AND, 0xF), _do(EQUALS, STREAM, skip_if=1),
        _do(RETURN, REFUSE), _do(RETURN, ALLOW)])
    return b"".join([*rules, _do(RETURN, ALLOW)])


def _if_called(number: int | None, rules: list[bytes]) -> list[bytes]:
    return [] if number is None else [_do(EQUALS, number, skip_else=len(rules)), *rules]


def _do(code: int, value: int, skip_if: int = 0, skip_else: int = 0) -> bytes:
    return struct.pack("HBBI", code, skip_if, skip_else, value)
