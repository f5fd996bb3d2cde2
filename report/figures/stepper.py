"""The page of the flow maps: one file without a network, driven by keys, sliders or a click."""

from collections.abc import Mapping

import jinja2
from markupsafe import Markup

from report.values.style import INK, PAGE_TYPE

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Flow by layer and head</title>
<style>
:root { color-scheme: light dark; --side: min(24rem, 44vw); --paper: #fcfcfa; --ink: {{ ink }}; }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #141518; --ink: #e6e6e2; } }
body { font: .9375rem/1.5 {{ type }}; margin: 1rem 0; padding: 0 1rem; max-width: 60rem;
  background: var(--paper); color: var(--ink); }
select { font: inherit; }
[hidden] { display: none !important; }
h1 { font-size: 1.0625rem; font-weight: 650; margin: 0 0 .5rem; }
form { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; align-items: center; }
label { display: flex; gap: .5rem; align-items: center; }
output { min-width: 2.5rem; font-variant-numeric: tabular-nums; }
.pair { display: flex; flex-wrap: wrap; gap: 1rem 2rem; margin-top: 1rem; }
figure { margin: 0; width: var(--side); }
.map { width: var(--side); height: var(--side); image-rendering: pixelated;
  background-repeat: no-repeat; background-color: #000; }
figcaption { font-size: .875rem; font-variant-numeric: tabular-nums; }
.heads { display: flex; flex-wrap: wrap; gap: .25rem; margin-top: .5rem; width: var(--side); }
.heads button { width: calc((var(--side) - 1.75rem) / 8); aspect-ratio: 1; padding: 0; border: 0;
  image-rendering: pixelated; background-repeat: no-repeat; cursor: pointer; }
.heads button[aria-pressed="true"] { outline: 2px solid; outline-offset: 1px; }
.bar { display: flex; gap: .5rem; align-items: center; font-size: .85rem; margin: 1rem 0; }
.bar img { width: 12rem; height: .7rem; image-rendering: pixelated; }
p { max-width: 44rem; }
</style>
</head>
<body>
<h1>Flow by layer and head</h1>
<form id="controls" hidden>
<label>Scale <select id="scale"></select></label>
<label>Layer <input id="layer" type="range" min="0"> <output id="layer-is"></output></label>
<label>Head <input id="head" type="range" min="0"> <output id="head-is"></output></label>
</form>
<div class="pair" id="pair"></div>
<div class="bar"><span>1/100,000</span><img src="{{ bar }}" alt="from black to pale yellow">
<span>all of a token’s flow</span></div>
<p>Rows are tokens that receive, from the first at the top; columns the tokens they draw from. Each
entry is the flow from a block of neighbouring tokens to another, mean over the rows of the former,
on the first diagnosed sequence. The numbers are means over all of them. Arrow keys step: left and
right through heads, up and down through layers; s changes the scale.</p>
<div id="sheets">
{% for scale, sheets in sheets.items() %}
{% for variant, sheet in sheets.items() %}
<h2>{{ scale }}, {{ names[variant] }}: a row a layer, a column a head</h2>
<img id="{{ scale }}-{{ variant }}" src="{{ sheet }}" alt="all flow maps">
{% endfor %}
{% endfor %}
</div>
<script type="application/json" id="data">{{ data | safe }}</script>
<script>
"use strict";
const {scales, names} = JSON.parse(document.getElementById("data").textContent);
const by = id => document.getElementById(id);
const at = {scale: 0, layer: 0, head: 0};
const percent = share => (100 * share).toPrecision(3) + "%";
const views = Object.keys(names).map(variant => {
  const figure = document.createElement("figure");
  const map = document.createElement("div"), caption = document.createElement("figcaption");
  const heads = document.createElement("div");
  map.className = "map";
  map.setAttribute("role", "img");
  heads.className = "heads";
  figure.append(map, caption, heads);
  by("pair").append(figure);
  return {variant, map, caption, heads};
});
// A sheet holds a row of maps a layer: scaled so that one map fills the element, then shifted.
function show(element, scale, variant, layer, head) {
  const part = (index, count) => (count > 1 ? 100 * index / (count - 1) : 0) + "%";
  element.style.backgroundImage = "url(" + by(scale.name + "-" + variant).src + ")";
  element.style.backgroundSize = 100 * scale.heads + "% " + 100 * scale.layers + "%";
  element.style.backgroundPosition = part(head, scale.heads) + " " + part(layer, scale.layers);
}
function draw() {
  const scale = scales[at.scale];
  at.layer = Math.max(0, Math.min(at.layer, scale.layers - 1));
  at.head = Math.max(0, Math.min(at.head, scale.heads - 1));
  by("scale").value = at.scale;
  for (const name of ["layer", "head"]) {
    by(name).max = scale[name + "s"] - 1;
    by(name).value = at[name];
    by(name + "-is").value = at[name];
  }
  for (const {variant, map, caption, heads} of views) {
    const found = scale.values[variant][at.layer][at.head];
    const title = names[variant] + ", L" + at.layer + ", head " + at.head;
    show(map, scale, variant, at.layer, at.head);
    map.setAttribute("aria-label", "flow map of " + title);
    caption.textContent = title + ": " + (variant === "full" ? "Self " : "diagonal ")
      + percent(found.self) + ", EffRank " + found.rank.toPrecision(4)
      + ", first-token sink " + percent(found.sink);
    heads.replaceChildren(...Array.from({length: scale.heads}, (_, head) => {
      const button = document.createElement("button");
      show(button, scale, variant, at.layer, head);
      button.type = "button";
      button.setAttribute("aria-label", names[variant] + ", head " + head);
      button.setAttribute("aria-pressed", String(head === at.head));
      button.onclick = () => { at.head = head; draw(); heads.children[head].focus(); };
      return button;
    }));
  }
  history.replaceState(null, "", "#" + [scale.name, at.layer, at.head].join("/"));
}
function read() {
  const [name, layer, head] = location.hash.slice(1).split("/");
  const index = scales.findIndex(scale => scale.name === name);
  if (index >= 0) Object.assign(at, {scale: index, layer: +layer || 0, head: +head || 0});
}
scales.forEach((scale, index) => {
  const words = scale.name + ", seed " + scale.seed + ", " + scale.length + " tokens";
  by("scale").add(new Option(words, index));
});
by("scale").onchange = event => { at.scale = +event.target.value; draw(); };
for (const name of ["layer", "head"])
  by(name).oninput = event => { at[name] = +event.target.value; draw(); };
const STEPS = {ArrowLeft: ["head", -1], ArrowRight: ["head", 1], ArrowUp: ["layer", -1],
  ArrowDown: ["layer", 1]};
addEventListener("keydown", event => {
  if (event.target.matches("input, select") || event.metaKey || event.ctrlKey) return;
  if (event.key === "s") at.scale = (at.scale + 1) % scales.length;
  else if (event.key in STEPS) at[STEPS[event.key][0]] += STEPS[event.key][1];
  else return;
  event.preventDefault();
  draw();
});
addEventListener("hashchange", () => { read(); draw(); });
by("controls").hidden = false;
by("sheets").hidden = true;
read();
draw();
</script>
</body>
</html>
"""


def page(
    data: str, sheets: Mapping[str, Mapping[str, str]], names: Mapping[str, str], bar: str
) -> str:
    """The page as HTML.

    data: JSON of the scales and of the variants' names; sheets: by scale and variant, the address
    of a PNG of all maps, which is what a browser without scripts shows; bar: that of the colours.
    """
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    # Inside a script element only "</" could end it.
    return environment.from_string(_PAGE).render(
        data=data.replace("<", "\\u003c"),
        sheets=sheets,
        names=names,
        bar=bar,
        ink=INK,
        type=Markup(PAGE_TYPE),
    )
