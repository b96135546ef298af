"""The broker's own tracker of delayed messages out of its jar, in a JVM of its own, to set ours beside it."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sandbox.servers.toolchain import Tools

PROGRAM = Path(__file__).with_name("JavaTracker.java")


@dataclass(frozen=True)
class JavaBucket:
    """A sealed bucket as the broker has it in memory."""

    start: int
    end: int
    bucket_id: int
    loaded: int
    segments: int
    messages: int
    undelivered: dict[int, list[int]]


class JavaTracker:
    """Sends a command, reads the answer; raises RuntimeError with what Java says where that fails."""

    def __init__(self, commands: IO[str], answers: IO[str]) -> None:
        self._commands, self._answers = commands, answers

    def ask(self, *words: object) -> str:
        self._commands.write(" ".join(map(str, words)) + "\n")
        self._commands.flush()
        for line in self._answers:
            if line.startswith("answer "):
                verdict, _, answer = line.removeprefix("answer ").rstrip("\n").partition(" ")
                if verdict != "ok":
                    raise RuntimeError(answer)
                return answer
        raise RuntimeError("the JVM has ended")

    def add(self, now: int, triples: Sequence[tuple[int, int, int]]) -> list[bool]:
        """Whether each (ledger, entry, deliver at) is tracked."""
        return [one == "1" for one in self.ask("add", now, *(number for triple in triples for number in triple))]

    def get(self, now: int, limit: int) -> list[tuple[int, int]]:
        """The (ledger, entry) handed out."""
        return [(int(a), int(b)) for a, _, b in (one.partition(":") for one in self.ask("get", now, limit).split())]

    def count(self) -> int:
        return int(self.ask("count").split()[0])

    def buckets(self) -> list[JavaBucket]:
        found = []
        for text in self.ask("buckets").split():
            *numbers, bitmaps = text.split(":")
            pairs = [one.split("=") for one in bitmaps.split(";") if one]
            undelivered = {int(ledger): [int(entry) for entry in bits.split(",") if entry] for ledger, bits in pairs}
            found.append(JavaBucket(*map(int, numbers), undelivered))
        return found

    def snapshots(self) -> dict[int, tuple[bytes, ...]]:
        """The entries of each snapshot, by bucket id."""
        found = {}
        for text in self.ask("snapshots").split():
            bucket_id, *entries = text.split(":")
            found[int(bucket_id)] = tuple(map(base64.b64decode, entries))
        return found

    def properties(self) -> dict[str, int]:
        pairs = [one.split("=") for one in self.ask("properties").strip("{}").split(", ") if one]
        return {key: int(bucket_id) for key, bucket_id in pairs}


@contextmanager
def java_tracker(tools: Tools, classes: Path, memory: str = "256m", *prefix: str) -> Iterator[JavaTracker]:
    """Compiles into ``classes``, and runs until the block ends; ``prefix`` comes before java on the command line."""
    jars = ":".join(map(str, sorted(Path(tools.pulsar).parent.glob("*.jar"))))
    compiler = [tools.java, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-XDignore.symbol.file"]
    command = [*compiler, "-proc:none", "-cp", jars, "-d", str(classes), str(PROGRAM)]
    subprocess.run(command, check=True, capture_output=True)
    java = [*prefix, tools.java, f"-Xmx{memory}", "-XX:+UseSerialGC", "-cp", f"{classes}:{tools.pulsar}"]
    program = "org.apache.pulsar.broker.delayed.bucket.JavaTracker"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*java, program], text=True, **pipes) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            yield JavaTracker(process.stdin, process.stdout)
        finally:
            process.kill()
