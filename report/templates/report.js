"use strict";

// A copy button copies the whole command from its data attribute.
for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  const label = button.textContent;
  button.addEventListener("click", async () => {
    button.textContent = (await copied(button.dataset.copy)) ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  });
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // The clipboard is not permitted, for example on file:// in some browsers.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// A link to an element inside a closed <details> opens it.
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folded = target?.closest("details");
  if (!folded) return;
  folded.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
openTarget();

// Open every <details> for printing.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
