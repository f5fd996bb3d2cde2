"use strict";

// Two things need a script: copying a command, and opening a cell to see what lies behind it.
// Every text from data is set as text, never as HTML.

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function copyButton(command) {
  const button = make("button", { type: "button", class: "copy", "aria-label": "Copy the command" }, "Copy");
  button.addEventListener("click", () => copy(command, button));
  return button;
}

async function copy(text, button) {
  let said = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    said = selectText(button.parentElement.querySelector("code")) ? "Press Ctrl-C" : "Not copied";
  }
  button.textContent = said;
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

function selectText(element) {
  getSelection().selectAllChildren(element);
  return document.execCommand("copy") || true;
}

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  const command = button.parentElement.querySelector("code").textContent;
  button.addEventListener("click", () => copy(command, button));
}

// The bar scrolls on a narrow screen: show where the reader is. Not by scrollIntoView, from where some
// browsers go on with Tab, past the link that skips the bar.
const here = document.querySelector(".bar [aria-current]");
if (here) {
  const bar = here.parentElement;
  bar.scrollLeft = here.offsetLeft - bar.offsetLeft - (bar.clientWidth - here.offsetWidth) / 2;
}

// Another report that does not lie beside this one is named without a link.
for (const link of document.querySelectorAll("a.beside")) {
  const probe = make("link", { rel: "stylesheet", media: "not all", href: link.href.replace(/(.*\/report\/).*/, "$1style.css") });
  probe.addEventListener("error", () => link.replaceWith(link.textContent));
  document.head.append(probe);
}

// A link to a closed record opens it, and the list that it or a row stands in.
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folded = target?.closest("details");
  if (!folded) return;
  for (let at = folded; at; at = at.parentElement.closest("details")) at.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
openTarget();

// Closed records print as well.
addEventListener("beforeprint", () => {
  for (const closed of document.querySelectorAll("details:not([open])")) {
    closed.open = true;
    closed.dataset.printed = "";
  }
});
addEventListener("afterprint", () => {
  for (const opened of document.querySelectorAll("details[data-printed]")) {
    opened.open = false;
    delete opened.dataset.printed;
  }
});

const panel = document.getElementById("behind");
if (panel) openCells(panel, JSON.parse(document.getElementById("behind-data").textContent));

function openCells(panel, data) {
  const links = [...document.querySelectorAll("a.behind")].filter((link) => data.cells[idOf(link)]);
  const up = document.querySelector('link[rel="stylesheet"]').getAttribute("href").replace("style.css", "");
  let current = -1;

  function idOf(link) {
    return decodeURIComponent(link.hash.slice(1));
  }

  function show(index) {
    current = index;
    const cell = data.cells[idOf(links[index])];
    document.getElementById("behind-title").textContent = cell.title;
    panel.querySelector(".body").replaceChildren(...cell.values.map((value) => section(value, cell.values.length > 1)));
    for (const step of panel.querySelectorAll(".step")) step.disabled = !links[index + Number(step.dataset.step)];
    if (!panel.open) panel.showModal();
    panel.querySelector(".body").scrollTop = 0;
    document.getElementById("behind-title").focus();
    history.replaceState(null, "", links[index].hash);
  }

  function section(value, several) {
    const made = make("section");
    if (several) made.append(make("h3", {}, value.name));
    made.append(facts(value.facts));
    if (value.verdict) made.append(ruling(value.verdict, value.verdict_reason, { within: "agrees", outside: "differs" }[value.verdict] || "open", { within: "✓ ", outside: "✗ " }[value.verdict] || ""));
    if (value.freshness && value.freshness !== "current") made.append(ruling(value.freshness, value.freshness_reason, value.freshness === "stale" ? "stale" : "open", ""));
    if (value.sources.length) made.append(make("h3", {}, value.sources.length === 1 ? "Record" : `${value.sources.length} records`));
    value.sources.forEach((name) => made.append(record(data.records[name], value.sources.length === 1)));
    return made;
  }

  function record(found, open) {
    const made = make("details", open ? { open: "" } : {}, make("summary", {}, make("code", {}, found.name)));
    made.append(facts(found.facts));
    if (found.freshness && found.freshness !== "current") made.append(ruling(found.freshness, "", "stale", ""));
    if (found.log) made.append(make("p", {}, "Log: ", make("a", { href: up + encodeURI(found.log_link) }, make("code", {}, found.log))));
    if (found.rerun) {
      made.append(make("div", { class: "copyable" }, make("pre", { tabindex: "0" }, make("code", {}, found.rerun)), copyButton(found.rerun)));
    }
    if (found.page) made.append(make("p", {}, make("a", { href: up + encodeURI(found.page) }, "All of this record")));
    return made;
  }

  function facts(pairs) {
    const list = make("dl", { class: "facts" });
    for (const [name, text] of pairs) list.append(make("dt", {}, name), make("dd", {}, text));
    return list;
  }

  function ruling(verdict, reason, kind, sign) {
    return make("p", { class: `ruling ${kind}` }, make("b", {}, sign + verdict), reason ? `: ${reason}` : "");
  }

  links.forEach((link, index) => {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      show(index);
    });
  });
  panel.querySelector(".close").addEventListener("click", () => panel.close());
  panel.addEventListener("click", (event) => {
    if (event.target === panel) panel.close();
  });
  panel.addEventListener("close", () => {
    history.replaceState(null, "", location.pathname);
    links[current]?.focus();
    current = -1;
  });
  for (const step of panel.querySelectorAll(".step")) {
    step.addEventListener("click", () => show(current + Number(step.dataset.step)));
  }
  panel.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by && links[current + by] && !event.target.closest("pre")) show(current + by);
  });

  // Arrow keys walk over the cells of a table; Tab still visits each.
  document.addEventListener("keydown", (event) => {
    const from = document.activeElement.closest?.("a.behind");
    if (!from || panel.open) return;
    const to = neighbour(from, event.key);
    if (to) {
      event.preventDefault();
      to.focus();
    }
  });

  function neighbour(link, key) {
    const index = links.indexOf(link);
    if (key === "ArrowLeft") return links[index - 1];
    if (key === "ArrowRight") return links[index + 1];
    if (key !== "ArrowUp" && key !== "ArrowDown") return null;
    const place = link.closest("td").getBoundingClientRect();
    const beyond = links.filter((other) => {
      const there = other.closest("td").getBoundingClientRect();
      return Math.abs(there.right - place.right) < 1 && (key === "ArrowDown" ? there.top > place.top : there.top < place.top);
    });
    return key === "ArrowDown" ? beyond[0] : beyond.at(-1);
  }

  // A cell has an address: following it opens the cell.
  function openAsked() {
    const asked = links.findIndex((link) => idOf(link) === decodeURIComponent(location.hash.slice(1)));
    if (asked >= 0 && asked !== current) show(asked);
  }
  addEventListener("hashchange", openAsked);
  openAsked();
}
