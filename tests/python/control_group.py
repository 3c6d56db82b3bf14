"""Control groups that limit the memory of a process, of version 1 or 2; they take root."""

import contextlib
import os
import pathlib
import time

ROOT = pathlib.Path("/sys/fs/cgroup")


class MemoryGroup:
    """A group of processes with so many bytes of memory, page cache included."""

    def __init__(self, limit_bytes):
        is_v1 = (ROOT / "memory").is_dir()
        self.path = (ROOT / "memory" if is_v1 else ROOT) / f"terrace-test-{os.getpid()}"
        self.path.mkdir()
        (self.path / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(limit_bytes))
        if not is_v1:
            (self.path / "memory.swap.max").write_text("0")
        self.events = self.path / ("memory.oom_control" if is_v1 else "memory.events")

    def command(self, command):
        """A command that joins the group and then becomes `command`."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.path / "cgroup.procs"), *command]

    def killed(self):
        """Processes that the kernel killed to stay within the limit."""
        lines = (line.split() for line in self.events.read_text().splitlines())
        return next((int(count) for name, count in lines if name == "oom_kill"), 0)

    def remove(self):
        for _ in range(100):
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.05)


@contextlib.contextmanager
def memory_group(limit_bytes):
    """A memory group, or None where none can be made."""
    try:
        group = MemoryGroup(limit_bytes)
    except OSError:
        yield None
        return
    try:
        yield group
    finally:
        group.remove()
