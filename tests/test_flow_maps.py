"""The flow maps: the layers of the picture, and the page of every layer and head of a pair."""

import base64
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib import image
from test_report_records import LAYERS, make_empty, make_records

from relation.flow.codes import TOP
from report.figures.drawing import NotDrawnError
from report.figures.flow_maps import COLOURS, flow_maps, stepper


@pytest.fixture(scope="module")
def page() -> str:
    return stepper(make_records())


@pytest.fixture(scope="module")
def scales(page: str) -> list[dict]:
    script = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(script[1])["scales"]


def test_each_scale_shows_its_first_pair(scales) -> None:
    found = [(s["name"], s["seed"], s["layers"], s["heads"], s["length"]) for s in scales]
    assert found == [(scale, 42, depth, 2, 64) for scale, depth in LAYERS.items()]


def test_the_picture_shows_the_layers_that_its_caption_names() -> None:
    """All of up to five; of 21 the first three, the middle one and the last."""
    titles = [axes.get_title() for axes in flow_maps.draw(make_records()).axes]
    shown = ["L0 L1 L2", "L0 L1", "L0 L1 L2 L10 L20"]
    assert (
        " ".join(filter(None, titles)).split() == " ".join(f"{row} {row}" for row in shown).split()
    )


def test_a_sheet_has_a_row_a_layer_and_a_column_a_head(page: str, scales) -> None:
    for scale in scales:
        for variant in ("mha", "full"):
            start = f'<img id="{scale["name"]}-{variant}" src="data:image/png;base64,'
            content = base64.b64decode(page.split(start)[1].partition('"')[0])
            pixels = image.imread(io.BytesIO(content), format="png")
            for layer, head in np.ndindex(scale["layers"], 2):
                part = pixels[8 * layer : 8 * layer + 8, 8 * head : 8 * head + 8]
                codes = np.tri(8) * (layer + 2 * head + 1)
                assert np.allclose(part, COLOURS(codes / TOP), atol=1 / 255)


def test_the_numbers_are_the_heads_own(scales) -> None:
    for scale in scales:
        for layer, head in np.ndindex(scale["layers"], 2):
            expected = {"mha": 0.1, "full": 0.2 * (layer + 1) * (head + 1)}
            for variant, value in expected.items():
                found = scale["values"][variant][layer][head]
                assert found == pytest.approx(dict.fromkeys(("self", "rank", "sink"), value))


def test_the_page_needs_no_network(page: str) -> None:
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", page)
    assert "http" not in page and "import(" not in page and "fetch" not in page
    assert page == stepper(make_records())


def test_without_a_measured_pair_there_is_no_page() -> None:
    records = make_records()
    for lacking in (make_empty(), replace(records, flow=records.flow.iloc[:0])):
        with pytest.raises(NotDrawnError):
            stepper(lacking)
