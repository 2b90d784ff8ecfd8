"use strict";
// The page is whole without this: it adds sorting, filtering, pictures to copy and quick tips.
const live = document.getElementById("live");
const tip = document.getElementById("tip");

// Tables ---------------------------------------------------------------------------------------

const number = (text) => parseFloat(text.replace(/,/g, ""));

function compare(a, b, numeric, sign) {
  if (!numeric) return sign * a.localeCompare(b);
  const [x, y] = [number(a), number(b)];
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // blanks last
  return sign * (x - y);
}

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const asWritten = [...body.rows];
  const headings = [...table.tHead.rows[0].cells];
  const next = { none: "ascending", ascending: "descending", descending: "none" };
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    heading.ariaSort = "none";
    button.addEventListener("click", () => {
      const order = next[heading.ariaSort];
      for (const other of headings) other.ariaSort = "none";
      heading.ariaSort = order;
      const numeric = heading.classList.contains("num");
      const text = (row) => row.cells[column]?.textContent ?? "";
      const sign = order === "descending" ? -1 : 1;
      const rows = [...asWritten];
      if (order !== "none") rows.sort((a, b) => compare(text(a), text(b), numeric, sign));
      body.append(...rows);
    });
  });
}

const filter = document.getElementById("filter");
const techniques = [...document.querySelectorAll("#techniques tbody tr")];
filter.closest(".filter").hidden = false;
filter.addEventListener("input", () => {
  const words = filter.value.toLowerCase().split(/\s+/);
  for (const row of techniques) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
  const shown = techniques.filter((row) => !row.hidden).length;
  document.querySelector(".filter output").textContent = `${shown} of ${techniques.length}`;
});

// Tips -----------------------------------------------------------------------------------------

for (const title of document.querySelectorAll("svg title")) {
  title.parentElement.dataset.tip = title.textContent; // in place of the browser's, which is late
  title.remove();
}

function textAt(event) {
  const svg = event.target.closest?.("svg[data-steps]");
  if (svg) {
    const box = svg.getBoundingClientRect();
    const at = (100 * (event.clientX - box.left)) / box.width;
    const places = svg.dataset.at.split(" ").map((place) => Math.abs(place - at));
    return JSON.parse(svg.dataset.steps)[places.indexOf(Math.min(...places))];
  }
  return event.target.closest?.("[data-tip]")?.dataset.tip ?? "";
}

function showTip(event) {
  tip.textContent = textAt(event);
  tip.hidden = !tip.textContent;
  if (tip.hidden) return;
  const left = Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${Math.max(8, event.clientY - tip.offsetHeight - 12)}px`;
}

addEventListener("pointermove", showTip);
addEventListener("pointerdown", showTip);
addEventListener("scroll", () => (tip.hidden = true), { passive: true });
addEventListener("keydown", (event) => event.key === "Escape" && (tip.hidden = true));

// Pictures -------------------------------------------------------------------------------------

const LOOKS = [
  ..."fill stroke stroke-width stroke-dasharray opacity vector-effect".split(" "),
  ..."font-size font-weight font-family text-anchor overflow".split(" "),
];

function drawable(svg) {
  const clone = svg.cloneNode(true);
  const originals = [svg, ...svg.querySelectorAll("*")];
  [clone, ...clone.querySelectorAll("*")].forEach((element, index) => {
    const style = getComputedStyle(originals[index]);
    for (const name of LOOKS) element.style.setProperty(name, style.getPropertyValue(name));
  });
  const box = svg.getBoundingClientRect();
  clone.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  clone.setAttribute("width", box.width);
  clone.setAttribute("height", box.height);
  const image = new Image();
  const text = new XMLSerializer().serializeToString(clone);
  image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
  return image.decode().then(() => [image, box]);
}

async function picture(figure) {
  const scale = 2;
  const margin = 16;
  const frame = figure.getBoundingClientRect();
  const canvas = document.createElement("canvas");
  canvas.width = scale * (frame.width + 2 * margin);
  canvas.height = scale * (frame.height + 2 * margin);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = getComputedStyle(document.body).backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.translate(margin - frame.left, margin - frame.top);
  const outermost = [...figure.querySelectorAll("svg")].filter((svg) => !svg.ownerSVGElement);
  for (const [image, box] of await Promise.all(outermost.map(drawable)))
    context.drawImage(image, box.left, box.top, box.width, box.height);
  context.textBaseline = "middle";
  for (const element of figure.querySelectorAll(".text, .source, figure > p, .reason")) {
    const style = getComputedStyle(element);
    context.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    context.fillStyle = style.color;
    for (const [line, box] of linesOf(element))
      context.fillText(line, box.left, box.top + box.height / 2);
  }
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

// The lines that a browser has broken an element's text into, with their boxes.
function* linesOf(element) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    let line = "";
    let box = null;
    for (const word of node.data.matchAll(/\S+\s*/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].trimEnd().length);
      const own = range.getBoundingClientRect();
      if (box && own.top > box.top + box.height / 2) {
        yield [line, box];
        [line, box] = ["", null];
      }
      line += word[0].replace(/\s+/, " ");
      box ??= own;
    }
    if (box) yield [line, box];
  }
}

for (const button of document.querySelectorAll(".copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const image = picture(button.closest("figure"));
    try {
      await navigator.clipboard.write([new ClipboardItem({ "image/png": image })]);
      live.textContent = "The image is on the clipboard";
    } catch {
      // No clipboard: then it is saved.
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await image);
      link.download = "figure.png";
      link.click();
      live.textContent = "The image was saved";
    }
    button.firstChild.data = live.textContent.includes("saved") ? "Saved" : "Copied";
    setTimeout(() => (button.firstChild.data = "Copy image"), 2000);
  });
}

// Diffs: a link into a closed one opens it. ----------------------------------------------------

function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") target.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();
