"use strict";
// Draws the steps as rows between the lines of their hosts.

const SVG = "http://www.w3.org/2000/svg";

// An element of HTML or SVG with attributes and text: markup is never made of strings.
function make(name, attributes, text, space) {
  const element = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const draw = (name, attributes, text) => make(name, attributes, text, SVG);

// Times have one unit in all of a story: nanoseconds of it, digits behind the point, its name.
const clock = { nanos: 1000, digits: 1, unit: "us" };

function wind(story) {
  const last = Math.max(0, ...story.steps.map((step) => step.at));
  if (last >= 1e7) Object.assign(clock, { nanos: 1e6, digits: 3, unit: "ms" });
  if (last >= 1e10) Object.assign(clock, { nanos: 1e9, digits: 6, unit: "s" });
}

function time(nanos) {
  return (nanos / clock.nanos).toFixed(clock.digits);
}

function shortened(text, columns) {
  return text.length > columns ? text.slice(0, Math.max(columns - 1, 1)) + "\u2026" : text;
}

// Places of everything, for a width and a zoom.
function measures(width, zoom, { hosts, steps }) {
  const isNarrow = width < 500 * zoom;
  const font = (isNarrow ? 10.5 : 12) * zoom;
  const longest = steps.length > 0 ? time(steps[steps.length - 1].at).length : 0;
  const left = Math.max((isNarrow ? 48 : 62) * zoom, longest * font * 0.61 + 10 * zoom);
  const right = width - (isNarrow ? 8 : 14) * zoom;
  const lanes = hosts.map((_, k) => left + (right - left) * (hosts.length < 2 ? 0 : k / (hosts.length - 1)));
  return { width, font, row: 23 * zoom, top: 30 * zoom, lanes, letter: font * 0.61, zoom };
}

function ladder(story, visible, width, zoom) {
  const m = measures(width, zoom, story);
  const height = m.top + visible.length * m.row + 8;
  const svg = draw("svg", { width: m.width, height, "font-size": m.font, role: "presentation" });
  story.hosts.forEach((host, k) => {
    svg.append(draw("line", { class: "life", x1: m.lanes[k], x2: m.lanes[k], y1: m.top - 4, y2: height - 4 }));
    const end = k > 0 && k === story.hosts.length - 1;
    const name = draw("text", { class: "lane-name", x: m.lanes[k], y: m.top - 12, "text-anchor": end ? "end" : "start" });
    name.append(draw("tspan", { "font-weight": "bold", fill: "currentColor" }, host.name), draw("tspan", {}, " " + host.address));
    svg.append(name);
  });
  visible.forEach((index, place) => svg.append(row(story.steps[index], index, m.top + place * m.row, m)));
  return svg;
}

function row(step, index, y, m) {
  const flight = step.flight;
  const classes = ["row", step.kind];
  if (flight && flight.fate) classes.push(flight.fate);
  if (flight && flight.again) classes.push("again");
  const group = draw("g", { class: classes.join(" "), role: "option", "data-step": index, id: "row-" + index });
  const spoken = flight ? "packet " + flight.number + ": " + flight.label + " " + (flight.fate || "") : step.title;
  group.setAttribute("aria-label", time(step.at) + " " + clock.unit + ": " + spoken);
  group.append(draw("rect", { x: 0, y, width: m.width, height: m.row }));
  const middle = y + m.row * 0.68;
  group.append(draw("text", { class: "when", x: m.lanes[0] - 10 * m.zoom, y: middle, "text-anchor": "end" }, time(step.at)));
  if (flight && flight.to !== step.host) arrow(group, step, y, m);
  else words(group, step, middle, m);
  return group;
}

function words(group, step, y, m) {
  const x = m.lanes[step.host];
  const atEnd = step.host > 0 && step.host === m.lanes.length - 1;
  group.append(draw("circle", { class: "dot", cx: x, cy: y - m.font * 0.34, r: 3.4 * m.zoom }));
  const room = Math.floor((m.lanes[m.lanes.length - 1] - m.lanes[0] - 24 * m.zoom) / m.letter);
  const away = 10 * m.zoom;
  const place = { class: "what", x: atEnd ? x - away : x + away, y, "text-anchor": atEnd ? "end" : "start" };
  group.append(draw("text", place, shortened(step.title, room)));
}

function arrow(group, step, y, m) {
  const flight = step.flight;
  const from = m.lanes[step.host];
  const to = m.lanes[flight.to];
  const forward = Math.sign(to - from);
  const line = y + m.row * 0.5;
  const isLost = flight.arrivals.length === 0;
  const end = isLost ? from + (to - from) * 0.82 : to - forward * 2;
  group.append(draw("line", { class: "arrow", x1: from, x2: end, y1: line, y2: line }));
  const size = 6 * m.zoom;
  if (isLost) {
    const cross = `M${end - size} ${line - size} l${2 * size} ${2 * size} m0 ${-2 * size} l${-2 * size} ${2 * size}`;
    group.append(draw("path", { class: "arrow", d: cross }));
  } else {
    const points = `${end},${line} ${end - forward * size * 1.5},${line - size * 0.7} ${end - forward * size * 1.5},${line + size * 0.7}`;
    group.append(draw("polygon", { class: "tip", points }));
  }
  const room = Math.floor((Math.abs(end - from) - 36 * m.zoom) / m.letter);
  const label = written(flight, room);
  const width = (label.length + 1) * m.letter;
  const center = (from + end) / 2 - (isLost ? forward * size : 0);
  group.append(draw("rect", { class: "label", x: center - width / 2, y: y + 1, width, height: m.row - 2 }));
  group.append(draw("text", { class: "what", x: center, y: y + m.row * 0.68, "text-anchor": "middle" }, label));
}

// What an arrow says, in as many letters.
function written(flight, room) {
  const extra = (flight.again ? " again" : "") + (flight.fate ? " (" + flight.fate + ")" : "");
  const number = flight.number > 0 ? "#" + flight.number + " " : "";
  const label = number + flight.label + extra;
  if (label.length <= room) return label;
  const short = number + flight.label.replace(/^[A-Z]+_/, "").replace(" bytes", " B");
  return shortened(short + extra, room);
}
