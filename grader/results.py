"""What the grader found: plain records, filled by grade.py, shown by report.py and export.py."""

from dataclasses import dataclass, field


@dataclass
class Check:
    """One case of one stage.  lines: what / where / what to try, at most 12, for a person."""

    name: str
    group: str  # "standard" or "robust"
    outcome: str
    label: str = ""  # the shape in words, as printed in brackets
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    where: str = ""
    diagnosis: dict | None = None  # "id", "kind" and "text" at least: docs/diagnoses.md
    lines: tuple[str, ...] = ()
    detail: str = ""  # a traceback or the submission's own output
    picture: tuple[str, ...] = ()  # --show: the effective attention matrix
    seconds: float = 0.0
    kernels: tuple[str, ...] = ()  # what was launched, or compiled: name@line

    @property
    def message(self) -> str:
        return "\n".join(self.lines)


@dataclass
class StageResult:
    """One stage.  points: 70 % for the standard cases, 30 % for the robust ones, 0 if rejected."""

    stage: int
    title: str
    max_points: int
    outcome: str = "skipped"
    points: float = 0.0
    sha256: str | None = None
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    benchmark: dict | None = None
    kernels: set[str] = field(default_factory=set)  # launched by any case: name@line
    confined: tuple[str, ...] = ()  # what held the worker: "user", "files", "network", "signals"
    sentence: str = ""  # why there are no checks, or why they ended early
    detail: str = ""


@dataclass
class Run:
    """All of it: where it ran, with which seed, and a result for every stage asked for."""

    device: str
    torch: str
    triton: str | None
    seed: int
    grader: str  # its version and hash: assignment.version()
    stages: list[StageResult] = field(default_factory=list)

    def exit_code(self) -> int:
        """0 every stage passed, 1 a stage did not, 3 the grader itself failed."""
        outcomes = [result.outcome for result in self.stages]
        if "grader_fault" in outcomes:
            return 3
        return 0 if outcomes and all(outcome == "pass" for outcome in outcomes) else 1
