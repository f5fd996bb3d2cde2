"""The figures of a report: each a function from a setting's records to a picture.

A function returns None where its rows are not there, and the figure is then left out.
"""

from dataclasses import replace
from pathlib import Path

from report.data import FRAMES, Records
from report.figures import quality, structure, systems
from report.figures.style import save, styled

ALL = (
    quality.loss_curves,
    quality.validation_curves,
    quality.pairs,
    quality.variants,
    structure.flow_by_layer,
    structure.flow_maps,
    structure.spectra,
    structure.history,
    structure.sink,
    systems.throughput,
    systems.scaling,
    systems.linear_long,
    systems.lengths,
    systems.recall,
)


def draw(records: Records, folder: Path) -> list[str]:
    """Draw every figure whose rows are there as folder/<name>.svg; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    frames = {name: getattr(records, name) for name in FRAMES}
    own = {n: f.assign(scale=f["own_scale"]) for n, f in frames.items() if "own_scale" in f}
    records, drawn = replace(records, **own), []
    for drawing in ALL:
        path = folder / f"{drawing.name}.svg"
        path.unlink(missing_ok=True)
        with styled():
            figure = drawing.draw(records)
            if figure is not None:
                save(figure, path)
                drawn.append(drawing.name)
    return drawn
