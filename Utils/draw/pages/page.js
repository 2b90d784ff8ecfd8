"use strict";
// The page is whole without this: it adds sorting and filtering.

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
