"use strict";
// Chooses among the figures, scales them to hours and dollars, filters. No other figure is made.

const SIGNS = { measured: "✕", published: "●" };
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
const inLadder = ({ script }) => script in figures.ladder;
const simple = (name) => name.toLowerCase().replaceAll(" ", "");
const label = ({ name, memory }) => (memory ? `${name}, ${memory} GB` : name);
const modelName = (key) => `${key.replace("gpt2", "GPT-2")}, ${digits(figures.models[key] / 1e6, 3)}M`;
const shapeName = (key) => `${key.replace("x", "\u00a0x\u00a0")} tokens`;
const rowsOf = (lists) =>
  lists.map((list) => Object.fromEntries(figures.columns.map((name, n) => [name, list[n]])));

const link = (path) => `${figures.source}${path}`;

// The mark of a figure's kind; a link to its source.
function mark(kind, href, source) {
  const words = node("span", { class: "sr" }, ` ${kind}, ${source}`);
  return node("a", { class: "mark", title: `${kind}: ${source}`, href }, SIGNS[kind], words);
}

const markOf = ({ folder }) => mark("measured", link(`${folder}/README.md`), folder);

// The choice in the address, with what exists in place of what does not.
function chosen() {
  let words = [];
  try {
    words = decodeURIComponent(location.hash.slice(1)).split(",");
  } catch { /* a damaged address is none */ }
  const nearest = (table, ...keys) =>
    keys.find((key) => Object.hasOwn(table, key)) ?? Object.keys(table)[0];
  const device = nearest(figures.answers, words[0]);
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
  byId("headline").replaceChildren(headline, faster ? " faster" : " tokens/s", " ", markOf(answer));
  const batch = shape.replace("x", "\u00a0x\u00a0");
  const interval = span(after.speedup_low, after.speedup_high, ratio);
  byId("summary").textContent =
    `Measured: ${answer.pick} on ${name}, ${modelName(model)}, ${batch} tokens a step` +
    (before ? "." : `, where no_optimization does not fit into ${memory} GB.`) +
    (interval ? ` 95% interval: ${interval}.` : "");
  const hours = (tokens) => TOKENS / tokens / 3600;
  const three = (x) => digits(x, 3);
  const cards = [
    card("Tokens a second", before && digits(before.tokens), digits(after.tokens), markOf(answer),
      span(after.tokens_low, after.tokens_high, digits)),
    card("Peak memory", before && three(before.gib), `${three(after.gib)} GiB`, markOf(answer),
      memory ? `of ${memory} GiB` : ""),
    card("10 billion tokens", before && three(hours(before.tokens)), `${three(hours(after.tokens))} hours`,
      markOf(answer), span(hours(after.tokens_high), hours(after.tokens_low), three)),
  ];
  const price = ownPrices[key] ?? figures.prices[key];
  if (price !== undefined) {
    const dollars = (tokens) => `$${three(price * hours(tokens))}`;
    cards.push(card("10 billion tokens", before && dollars(before.tokens), dollars(after.tokens),
      markOf(answer), span(after.tokens_high, after.tokens_low, dollars)));
  }
  byId("cards").replaceChildren(...cards);
  byId("price").value = price ?? "";
  const listed = figures.prices[key];
  const source = node("a", { href: figures.prices.source }, `list price of ${figures.prices.as_of}`);
  byId("price-source").replaceChildren(...(listed ? [`$${listed}: `, source] : ["no list price"]));
  byId("why").textContent =
    `The smallest measured set that is as fast as the fastest. ${answer.described}.`;
  showLines(answer);
  showScripts(rows, answer);
}

function showLines({ techniques, lines }) {
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
    const memory = [digits(row.gib, 3), " ", markOf(answer)];
    return [row.technique, [digits(row.tokens), " ", markOf(answer)],
      withEnds(row.before, row.before_low, row.before_high),
      withEnds(row.speedup, row.speedup_low, row.speedup_high), memory, row.loss];
  });
  const headings = ["script", "tokens/s", "over the script before", "over the baseline", "peak GiB", "loss"];
  const body = table("scripts", headings, cells);
  rows.forEach((row, n) => body[n].classList.toggle("pick", row.technique === answer.pick));
}

// Points of the chart of ratios: of a device's rows, and published ones of its family of GPUs.
// key: of a device, or the name of a GPU that others have published figures of.
function ratioPoints(key, model, shape, side) {
  const point = (script, value, low, high, kind, of) => ({
    script: figures.ladder[script], ratio: value, low: low ?? value, high: high ?? value, kind, side,
    text: `${figures.ladder[script]}: ${[ratio(value), span(low, high, ratio), kind, of].filter(Boolean).join(", ")}`,
  });
  const theirs = figures.published.filter((each) => inLadder(each) && simple(key).startsWith(simple(each.gpu)));
  const points = theirs.map((each) =>
    point(each.script, each.ratio, null, null, "published", `${each.gpu}, ${each.name}`));
  const models = figures.answers[key];
  if (models === undefined) return points;

  const shapes = models[model] ?? Object.values(models)[0];
  const used = Object.hasOwn(shapes, shape) ? shape : Object.keys(shapes)[0];
  const rows = rowsOf(shapes[used].rows).filter((row) => row.before !== null && row.technique in figures.ladder);
  return points.concat(rows.map((row) => point(row.technique, row.before, row.before_low, row.before_high,
    "measured", `${device(key).name}, ${shapeName(used)}`)));
}

// Points of the chart of memory: all batches of the chosen length.
function memoryPoints({ device: key, model, shape, answer }) {
  const roles = { no_optimization: "baseline", [answer.pick]: "pick" };
  const point = (script, batch, gib) => ({
    script, batch, gib, role: roles[script] ?? "script", size: device(key).memory,
    text: `${script}, batch ${batch}: ${digits(gib, 3)} GiB, measured`,
  });
  const length = shape.split("x")[1];
  const shapes = Object.entries(figures.answers[key][model]).filter(([each]) => each.split("x")[1] === length);
  const all = shapes.flatMap(([each, { rows }]) =>
    rowsOf(rows).map((row) => point(row.technique, Number(each.split("x")[0]), row.gib)));
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
  const published = [...new Set(figures.published.filter(inLadder).map(({ gpu }) => gpu))];
  options("other", { ...gpus, "Published by others": published.map((gpu) => [gpu, gpu]) },
    byId("other").value || published.find((gpu) => !simple(key).startsWith(simple(gpu))));
  document.title = `${device(key).name}: PyTorch training optimizations`;
  showAnswer(choice);
  showCharts(choice);
}

function showTables() {
  table("published", ["change", "GPU", "speedup", "source"], figures.published.map((each) => [
    each.script, each.gpu, [ratio(each.ratio), " ", mark("published", each.url, each.name)], each.name]));
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
