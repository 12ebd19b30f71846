"""Reads from /proc what a gateway and its children use."""

import os


def _stat(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(") ")[2].split()


def tree(root):
    """The processes below `root`, itself included, without those that have ended."""
    below = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                below.setdefault(int(_stat(name)[1]), []).append(int(name))
            except (OSError, IndexError):
                pass
    found, open_ = [], [root]
    while open_:
        pid = open_.pop()
        if os.path.exists(f"/proc/{pid}"):
            found.append(pid)
            open_ += below.get(pid, [])
    return found


def is_child(pid, child):
    """Whether this process runs the common child, not the gateway itself or a guard of it."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[:-1] == [part.encode() for part in child]
    except OSError:
        return False


def cpu_s(root, child):
    """The processor time of the gateway, without its children of the common kind."""
    ticks = 0
    for pid in tree(root):
        try:
            stat = _stat(pid)
        except OSError:
            continue
        if not is_child(pid, child):
            ticks += int(stat[11]) + int(stat[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mb(root, child):
    """The resident memory of the gateway and its helpers, without the common children."""
    pages = 0
    for pid in tree(root):
        try:
            with open(f"/proc/{pid}/statm") as file:
                resident = int(file.read().split()[1])
        except OSError:
            continue
        if not is_child(pid, child):
            pages += resident
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def children(root, child):
    return [pid for pid in tree(root) if is_child(pid, child)]
