"use strict";
// Chooses among the figures, scales them to hours and dollars, filters. No other figure is made.

const SIGNS = { measured: "✕", published: "●", forecast: "○" };
const TOKENS = 10e9;
const byId = (id) => document.getElementById(id);
const ownPrices = {}; // by device, as typed
let figures;

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function node(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const digits = (x, most = 4) => x.toLocaleString("en-US", { maximumSignificantDigits: most });
const ratio = (x) => (x === null ? "" : `${x.toFixed(2)}x`);
const span = (low, high, text) => (low === null || low === high ? "" : `${text(low)} to ${text(high)}`);
const device = (key) => figures.devices.find((each) => each.key === key);
const label = ({ name, memory }) => (memory ? `${name}, ${memory} GB` : name);
const modelName = (key) => `${key.replace("gpt2", "GPT-2")}, ${digits(figures.models[key] / 1e6, 3)}M`;
const shapeName = (key) => `${key.replace("x", "\u00a0x\u00a0")} tokens`;
const rowsOf = (lists) =>
  lists.map((list) => Object.fromEntries(figures.columns.map((name, n) => [name, list[n]])));

const link = (path, line) =>
  `${figures.source}${path}${line && figures.repository ? `?plain=1#L${line}` : ""}`;

// The mark of a figure's kind; a link to its row or source.
function mark(kind, href, source) {
  const words = node("span", { class: "sr" }, ` ${kind}, ${source}`);
  return node("a", { class: "mark", title: `${kind}: ${source}`, href }, SIGNS[kind], words);
}

function markOf(answer, row) {
  if (answer.folder) return mark("measured", link(`${answer.folder}/README.md`), answer.folder);
  return mark("forecast", link("docs/forecast.csv", row.line), `docs/forecast.csv, line ${row.line}`);
}

// The choice in the address, with what exists in place of what does not.
function chosen() {
  let words = [];
  try {
    words = decodeURIComponent(location.hash.slice(1)).split(",");
  } catch { /* a damaged address is none */ }
  const nearest = (table, ...keys) =>
    keys.find((key) => Object.hasOwn(table, key)) ?? Object.keys(table)[0];
  const device = nearest(figures.answers, words[0], "a100");
  const model = nearest(figures.answers[device], words[1], "gpt2");
  const shape = nearest(figures.answers[device][model], words[2], "16x1024");
  return { device, model, shape, answer: figures.answers[device][model][shape] };
}

// Fills a select with [key, text] pairs by the label of their group; "" has none.
function options(id, groups, value) {
  const option = ([key, text]) => node("option", { value: key }, text);
  byId(id).replaceChildren(...Object.entries(groups).flatMap(([group, pairs]) =>
    group ? [node("optgroup", { label: group }, ...pairs.map(option))] : pairs.map(option)));
  byId(id).value = value;
}

function card(title, before, after, mark, ...notes) {
  const small = notes.filter(Boolean).map((text) => node("small", {}, text));
  const from = node("span", { class: "from" }, `${before ?? "does not fit"} →`);
  return node("div", {}, node("dt", {}, title), node("dd", {}, from, after, " ", mark, ...small));
}

function showAnswer({ device: key, model, shape, answer }) {
  const rows = rowsOf(answer.rows);
  const ends = ["no_optimization", answer.pick].map((name) => rows.find((row) => row.technique === name));
  const [before, after] = answer.pair ? rowsOf(answer.pair) : ends;
  const { name, memory } = device(key);
  const faster = before && after.speedup > 1;
  const headline = node("strong", {}, faster ? ratio(after.speedup) : digits(after.tokens));
  byId("headline").replaceChildren(headline, faster ? " faster" : " tokens/s", " ", markOf(answer, after));
  const batch = shape.replace("x", "\u00a0x\u00a0");
  const interval = span(after.speedup_low, after.speedup_high, ratio);
  const kind = answer.kind === "forecast" ? "Forecast, not measured: " : "Measured: ";
  const certainty = answer.kind === "forecast" ? "90% range" : "95% interval";
  byId("summary").textContent =
    `${kind}${answer.pick} on ${name}, ${modelName(model)}, ${batch} tokens a step` +
    (before ? "." : `, where no_optimization does not fit into ${memory} GB.`) +
    (interval ? ` ${certainty}: ${interval}.` : "");
  const hours = (tokens) => TOKENS / tokens / 3600;
  const three = (x) => digits(x, 3);
  const cards = [
    card("Tokens a second", before && digits(before.tokens), digits(after.tokens), markOf(answer, after),
      span(after.tokens_low, after.tokens_high, digits)),
    card("Peak memory", before && three(before.gib), `${three(after.gib)} GiB`, markOf(answer, after),
      memory ? `of ${memory} GiB` : ""),
    card("10 billion tokens", before && three(hours(before.tokens)), `${three(hours(after.tokens))} hours`,
      markOf(answer, after), span(hours(after.tokens_high), hours(after.tokens_low), three)),
  ];
  const price = ownPrices[key] ?? figures.prices[key];
  if (price !== undefined) {
    const dollars = (tokens) => `$${three(price * hours(tokens))}`;
    cards.push(card("10 billion tokens", before && dollars(before.tokens), dollars(after.tokens),
      markOf(answer, after), span(after.tokens_high, after.tokens_low, dollars)));
  }
  byId("cards").replaceChildren(...cards);
  byId("price").value = price ?? "";
  const listed = figures.prices[key];
  const source = node("a", { href: figures.prices.source }, `list price of ${figures.prices.as_of}`);
  byId("price-source").replaceChildren(...(listed ? [`$${listed}: `, source] : ["no list price"]));
  const changes = figures.copies[answer.pick].techniques.length;
  byId("why").textContent = answer.folder
    ? `The smallest measured set that is as fast as the fastest. ${answer.described}.`
    : `By forecast: the ${changes} changes of the shortest line of scripts within 3% of the fastest that fits.`;
  showLines(answer);
  showScripts(rows, answer);
}

function showLines({ pick }) {
  const { techniques, lines } = figures.copies[pick];
  const library = document.querySelector("#libraries :checked").value;
  byId("code").replaceChildren(...lines[library].map((line) =>
    node("span", { class: line.trim().startsWith("#") ? "soft-code" : "code" }, `${line}\n`)));
  const kinds = { "+": "added", "-": "removed", "@": "place" };
  byId("diffs").replaceChildren(...techniques.map((name) => {
    const { headline, costs, diff, path } = figures.techniques[name];
    const changed = diff.map((line) => node("span", { class: kinds[line[0]] ?? "same" }, line || " "));
    const title = node("h3", {}, node("a", { href: link(path) }, name));
    const code = node("pre", { class: "diff", tabindex: "0" }, node("code", {}, ...changed));
    return node("div", {}, title, node("p", {}, `${headline}. Costs: ${costs}`), code);
  }));
}

function table(id, headings, rows) {
  const head = headings.map((text, n) => node("th", { scope: "col", class: n ? "num" : "name" }, text));
  const body = rows.map(([name, ...cells]) => node("tr", {}, node("th", { scope: "row" }, name),
    ...cells.map((cell) => node("td", { class: "num" }, ...[cell].flat()))));
  byId(id).replaceChildren(node("thead", {}, node("tr", {}, ...head)), node("tbody", {}, ...body));
  return body;
}

function showScripts(rows, answer) {
  const withEnds = (value, low, high) => ratio(value) + (span(low, high, ratio) && ` (${span(low, high, ratio)})`);
  const cells = rows.map((row) => {
    const memory = [digits(row.gib, 3), " ", markOf(answer, row)];
    return [row.technique, `${row.batch}`, [digits(row.tokens), " ", markOf(answer, row)],
      withEnds(row.before, row.before_low, row.before_high),
      withEnds(row.speedup, row.speedup_low, row.speedup_high), memory, ...(row.loss ? [row.loss] : [])];
  });
  const headings = ["script", "batch", "tokens/s", "over the script before", "over the baseline", "peak GiB"];
  const body = table("scripts", rows[0].loss ? [...headings, "loss"] : headings, cells);
  rows.forEach((row, n) => body[n].classList.toggle("pick", row.technique === answer.pick));
}

// A device's points in the chart of ratios: of its rows, and published ones of its family.
function ratioPoints(key, model, shape, side) {
  const shapes = figures.answers[key][model] ?? Object.values(figures.answers[key])[0];
  // Ranges are over the baseline, so the last shape that it fits stands in for a larger one.
  const fits = Object.keys(shapes).filter((each) => shapes[each].rows[0][0] === "no_optimization");
  const used = fits.includes(shape) ? shape : (fits.at(-1) ?? Object.keys(shapes)[0]);
  const { kind, rows } = shapes[used];
  const point = (script, value, low, high, kind, of) => ({
    script, ratio: value, low: low ?? value, high: high ?? value, kind, side,
    text: `${script}: ${[ratio(value), span(low, high, ratio), kind, of].filter(Boolean).join(", ")}`,
  });
  const ours = rowsOf(rows).filter((row) => row.before !== null && row.technique in figures.ladder);
  const family = (gpu) => key.startsWith(gpu.toLowerCase().replaceAll(" ", ""));
  const theirs = figures.published.filter(({ script, gpu }) => script in figures.ladder && family(gpu));
  return [
    ...ours.map((row) => point(figures.ladder[row.technique], row.before, row.before_low, row.before_high, kind,
      `${device(key).name}, ${shapeName(used)}`)),
    ...theirs.map((each) => point(figures.ladder[each.script], each.ratio, null, null, "published",
      `${each.gpu}, ${each.name}`)),
  ];
}

function memoryPoints({ device: key, model, answer }) {
  const roles = { no_optimization: "baseline", [answer.pick]: "pick" };
  const point = (script, batch, gib, kind) => ({
    script, batch, gib, kind, role: roles[script] ?? "script", size: device(key).memory ?? null,
    text: `${script}, batch ${batch}: ${digits(gib, 3)} GiB, ${kind}`,
  });
  const all = Object.values(figures.answers[key][model]).flatMap(({ kind, rows }) =>
    rowsOf(rows).map((row) => point(row.technique, row.batch, row.gib, kind)));
  const order = ["script", "baseline", "pick"]; // the last is drawn above the others
  return all.sort((a, b) => order.indexOf(a.role) - order.indexOf(b.role));
}

function draw(id, values) {
  const spec = { ...figures.charts[id], data: { values }, width: byId(id).clientWidth };
  const options = { renderer: "svg", actions: false, tooltip: { theme: "custom" }, logLevel: 1 };
  return vegaEmbed(byId(id), spec, options);
}

function showCharts(choice) {
  const { device: key, model, shape, answer } = choice;
  const sides = [[key, "this"], [byId("other").value, "other"]];
  const order = Object.values(figures.ladder);
  const points = sides.flatMap(([each, side]) => ratioPoints(each, model, shape, side));
  draw("ratios", points.sort((a, b) => order.indexOf(a.script) - order.indexOf(b.script)));
  byId("this").textContent = device(key).name;
  const memory = memoryPoints(choice);
  byId("memory-part").hidden = new Set(memory.map((point) => point.batch)).size < 2;
  if (!byId("memory-part").hidden) draw("memory", memory);
  byId("pick").textContent = answer.pick;
}

function show() {
  const choice = chosen();
  const { device: key, model, shape } = choice;
  const pairs = (table, name) => Object.keys(table).map((each) => [each, name(each)]);
  const gpus = Object.groupBy(figures.devices, ({ group }) => group);
  for (const group of Object.keys(gpus)) gpus[group] = gpus[group].map((each) => [each.key, label(each)]);
  options("device", gpus, key);
  options("model", { "": pairs(figures.answers[key], modelName) }, model);
  options("shape", { "": pairs(figures.answers[key][model], shapeName) }, shape);
  options("other", gpus, byId("other").value || (key === "rtx4090" ? "a100" : "rtx4090"));
  document.title = `${device(key).name}: PyTorch training optimizations`;
  showAnswer(choice);
  showCharts(choice);
}

function showTables() {
  table("published", ["change", "GPU", "speedup", "source"], figures.published.map((each) => [
    each.script, each.gpu, [ratio(each.ratio), " ", mark("published", each.url, each.name)], each.name]));
  byId("errors").textContent = figures.errors;
  for (const anchor of document.querySelectorAll("[data-path]")) anchor.href = link(anchor.dataset.path);
}

async function start() {
  figures = await unpack(window.packedFigures);
  byId("choice").addEventListener("change", () => {
    location.hash = ["device", "model", "shape"].map((id) => byId(id).value).join(",");
  });
  byId("other").addEventListener("change", () => showCharts(chosen()));
  byId("price").addEventListener("change", ({ target }) => {
    ownPrices[chosen().device] = target.value === "" ? undefined : target.valueAsNumber;
    showAnswer(chosen());
  });
  byId("libraries").addEventListener("change", () => showLines(chosen().answer));
  byId("copy").addEventListener("click", async ({ target }) => {
    await navigator.clipboard.writeText(byId("code").textContent);
    target.textContent = "Copied";
  });
  addEventListener("hashchange", show);
  addEventListener("resize", () => showCharts(chosen()));
  showTables();
  show();
}

start();
