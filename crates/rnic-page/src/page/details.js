// What a step says, and its bytes: fields and bytes light each other.

function describe(story, index) {
  const step = story.steps[index];
  const part = make("div");
  part.append(make("h2", {}, heading(story, step)));
  const facts = [time(step.at) + " " + clock.unit, "host " + story.hosts[step.host].name, step.kind];
  if (step.qp) facts.push("queue pair " + step.qp);
  if (step.reason) facts.push("reason: " + step.reason);
  part.append(make("p", { class: "facts" }, facts.join(" \u00b7 ")));
  if (step.flight) part.append(make("p", {}, journey(story, step)));
  for (const paragraph of step.text) part.append(make("p", {}, paragraph));
  if (step.rules.length > 0) {
    const list = make("ul", { class: "rules" });
    for (const rule of step.rules) {
      const item = make("li");
      item.append(make("b", {}, rule.name), ": " + rule.what + ".");
      list.append(item);
    }
    part.append(list);
  }
  for (const block of step.blocks) part.append(explained(block));
  return part;
}

function heading(story, step) {
  const flight = step.flight;
  if (!flight) return step.title;
  const number = flight.number > 0 ? "#" + flight.number + " " : "";
  return "Packet " + number + "to " + story.hosts[flight.to].name + ": " + flight.label;
}

function journey(story, step) {
  const flight = step.flight;
  const name = story.hosts[flight.to].name;
  if (flight.arrivals.length === 1 && flight.arrivals[0] === step.at) {
    return "Seen on its way to " + name + (flight.again ? ", not for the first time" : "") + (flight.fate ? " (" + flight.fate + ")" : "") + ".";
  }
  const times = flight.arrivals.map((at) => time(at) + " " + clock.unit);
  const arrives = times.length > 0 ? "arrives at " + name + " at " + times.join(" and ") : "never arrives";
  return (flight.again ? "Sent again; " : "Sent; ") + arrives + (flight.fate ? " (" + flight.fate + ")" : "") + ".";
}

function explained(block) {
  const part = make("div", { class: "block" });
  const bytes = block.hex.match(/../g) || [];
  part.append(make("h2", {}, block.title + ", " + bytes.length + " bytes"));
  const owners = bytes.map(() => -1);
  block.fields.forEach((field, k) => owners.fill(k, field.start, field.start + field.len));
  const cells = new Map();
  const rows = [];
  const light = (field, from) => {
    for (const cell of part.querySelectorAll(".lit")) cell.classList.remove("lit");
    if (field < 0) return;
    for (const cell of cells.get(field) || []) cell.classList.add("lit");
    rows[field].classList.add("lit");
    const other = from === "bytes" ? rows[field] : (cells.get(field) || [])[0];
    if (other && from) other.scrollIntoView({ block: "nearest" });
  };
  part.append(dump(bytes, owners, cells, light));
  if (block.fields.length > 0) part.append(fields(block, rows, light));
  return part;
}

// The bytes in rows of sixteen, or of eight where there is little room.
function dump(bytes, owners, cells, light) {
  const grid = make("div", { class: "hex" });
  const columns = window.innerWidth < 500 ? 8 : 16;
  for (let start = 0; start < bytes.length; start += columns) {
    grid.append(make("span", { class: "offset" }, String(start)));
    const line = make("span", { class: "bytes" });
    for (let at = start; at < Math.min(start + columns, bytes.length); at += 1) {
      const owner = owners[at];
      const cell = make("span", { class: "byte" + (owner % 2 === 1 ? " odd" : "") }, bytes[at]);
      cell.addEventListener("click", () => light(owner, "bytes"));
      cell.addEventListener("mouseenter", () => light(owner, ""));
      if (owner >= 0) cells.set(owner, [...(cells.get(owner) || []), cell]);
      line.append(cell);
    }
    grid.append(line);
  }
  return grid;
}

function fields(block, rows, light) {
  const table = make("table", { class: "fields" });
  block.fields.forEach((field, k) => {
    const line = make("tr", { tabindex: "0" });
    const end = field.start + field.len - 1;
    line.append(make("td", {}, end > field.start ? field.start + "\u2013" + end : String(field.start)));
    line.append(make("td", {}, field.name));
    const value = make("td", {}, field.value);
    if (field.note) value.append(make("span", { class: "note" }, "  " + field.note));
    line.append(value);
    line.addEventListener("click", () => light(k, "fields"));
    line.addEventListener("focus", () => light(k, ""));
    line.addEventListener("mouseenter", () => light(k, ""));
    rows.push(line);
    table.append(line);
  });
  return table;
}

// Charts of the series, one for each group.
function charts(story, now) {
  const groups = new Map();
  for (const series of story.series) groups.set(series.group, [...(groups.get(series.group) || []), series]);
  const first = story.begin || 0;
  const points = story.series.flatMap((series) => series.points);
  const last = Math.max(first + 1, ...[...story.steps, ...points].map((one) => one.at));
  return [...groups].map(([group, list]) => chart(group, list, [first, last], now));
}

function chart(group, list, [first, last], now) {
  const [width, height, left, bottom] = [900, 150, 40, 22];
  const values = list.flatMap((series) => series.points.map((point) => point.value));
  const most = Math.max(1, ...values);
  const x = (at) => left + ((width - left - 8) * Math.max(at - first, 0)) / (last - first);
  const y = (value) => height - bottom - ((height - bottom - 10) * Math.max(value, 0)) / most;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": group });
  svg.append(draw("line", { class: "axis", x1: left, x2: width, y1: y(0), y2: y(0) }));
  svg.append(draw("text", { x: left - 6, y: y(most) + 4, "text-anchor": "end" }, String(most)));
  svg.append(draw("text", { x: left - 6, y: y(0) + 4, "text-anchor": "end" }, "0"));
  svg.append(draw("text", { x: width - 4, y: height - 5, "text-anchor": "end" }, time(last) + " " + clock.unit));
  if (first > 0) svg.append(draw("text", { x: left, y: height - 5 }, time(first) + " " + clock.unit));
  const legend = make("div", { class: "legend" });
  list.forEach((series, k) => {
    svg.append(draw("path", { class: "curve s" + (k % 5), d: curve(series, [first, last], x, y) }));
    const sample = draw("svg", { viewBox: "0 0 30 8" });
    sample.append(draw("line", { class: "curve s" + (k % 5), x1: 0, x2: 30, y1: 4, y2: 4 }));
    const entry = make("span");
    entry.append(sample, " " + series.name);
    legend.append(entry);
  });
  if (now !== null) svg.append(draw("line", { class: "now", x1: x(now), x2: x(now), y1: 4, y2: y(0) }));
  const figure = make("figure");
  figure.append(make("figcaption", {}, group), legend, svg);
  return figure;
}

// Each value lasts until the next.
function curve(series, [first, last], x, y) {
  let path = "";
  let before = null;
  for (const { at, value } of series.points) {
    if (before === null) path += `M${x(first)} ${y(0)}`;
    path += `H${x(at)}V${y(value)}`;
    before = value;
  }
  return path + `H${x(last)}`;
}
