"""What is measured, and how it is told: medians, ratios, and how far they would move in another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

BLOCKS = 5


class Missing(Exception):
    """A part that a section measures is not there; the section is skipped with this line."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of medians; `noise` is how far it strayed over the parts of the run, None with only one."""

    value: float
    noise: float | None


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. `target` is `<= x` or `>= x` of the ratio, empty where a figure is only told."""

    name: str
    value: float
    unit: str
    floor: str = ""
    ratio: Ratio | None = None
    target: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met, None without one."""
        if not self.target or self.ratio is None:
            return None
        relation, limit = self.target.split()
        return self.ratio.value <= float(limit) if relation == "<=" else self.ratio.value >= float(limit)

    def plain(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self) | {"met": self.met}


@dataclass(frozen=True, slots=True)
class Section:
    """What one part of the benchmark found, or why it found nothing."""

    title: str
    seconds: float
    figures: tuple[Figure, ...] = ()
    skipped: str = ""


def ratio(subject: Sequence[float], floor: Sequence[float]) -> Ratio:
    """The ratio of two interleaved series of equal length."""
    size = max(1, len(subject) // BLOCKS)
    parts = [
        median(subject[at : at + size]) / median(floor[at : at + size])
        for at in range(0, len(subject) - size + 1, size)
    ]
    return Ratio(median(subject) / median(floor), spread(parts))


def spread(parts: Sequence[float]) -> float | None:
    """Half the range of five parts or more; of fewer the whole range, which says less; of one nothing."""
    if len(parts) < 2:
        return None
    return (max(parts) - min(parts)) / (2 if len(parts) >= BLOCKS else 1)


def quantile(values: Sequence[float], q: float) -> float:
    """The value below which a share `q` of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def number(value: float) -> str:
    """Three or so significant digits."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def table(sections: Sequence[Section]) -> str:
    """All of it as Markdown."""
    lines = []
    for section in sections:
        lines += [f"### {section.title}", ""]
        if section.skipped:
            lines += [f"Skipped: {section.skipped}.", ""]
            continue
        rows: list[tuple[str, ...]] = [("figure", "measured", "floor", "ratio", "±", "target", "")]
        for figure in section.figures:
            verdict = {True: "met", False: "MISSED", None: ""}[figure.met]
            share = (f"{figure.ratio.value:.3f}", _stray(figure.ratio.noise)) if figure.ratio else ("", "")
            measured = f"{number(figure.value)} {figure.unit}"
            rows.append((figure.name, measured, figure.floor, *share, figure.target, verdict))
        widths = [max(len(row[at]) for row in rows) for at in range(7)]
        rows.insert(1, tuple("-" * width for width in widths))
        lines += ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def _stray(noise: float | None) -> str:
    return "one round" if noise is None else f"{noise:.3f}"


def report(machine: Mapping[str, object], sections: Sequence[Section]) -> dict[str, object]:
    """All of it as JSON."""
    return {
        "machine": dict(machine),
        "sections": [
            {
                "title": section.title,
                "seconds": round(section.seconds, 1),
                "skipped": section.skipped,
                "figures": [figure.plain() for figure in section.figures],
            }
            for section in sections
        ],
    }
