"""The figures of a report. Each is a function that draws the records of one setting."""

from dataclasses import replace
from pathlib import Path

from relation.records import FILES
from report.data import Records
from report.figures import quality, structure, systems
from report.figures.style import Drawing, save, styled

# All figures, in the order of the page; `drawing` declares each.
_MODULES = (quality, structure, systems)
ALL = [each for module in _MODULES for each in vars(module).values() if type(each) is Drawing]


def draw(records: Records, folder: Path) -> list[str]:
    """Draw each figure that has rows as folder/<name>.svg. Return the names of those drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    frames = {name: getattr(records, name) for name in FILES}
    rescaled = {n: f.assign(scale=f["own_scale"]) for n, f in frames.items() if "own_scale" in f}
    records, drawn = replace(records, **rescaled), []
    for drawing in ALL:
        path = folder / f"{drawing.name}.svg"
        path.unlink(missing_ok=True)
        if len(rows := drawing.choose(records)):
            with styled():
                save(drawing.draw(rows, records), path)
            drawn.append(drawing.name)
    return drawn
