// The page: what is shown, what is chosen, and the keys.

(() => {
  const story = JSON.parse(document.getElementById("story").textContent);
  const at = (id) => document.getElementById(id);
  const state = { chosen: null, zoom: 1, visible: [] };

  // What is chosen stays, also where nothing is left of it.
  function options(select, values) {
    const wanted = [...new Set([...values, select.value].filter(Boolean))].sort();
    if (select.dataset.values === wanted.join("\n")) return;
    const chosen = select.value;
    select.dataset.values = wanted.join("\n");
    select.replaceChildren(make("option", { value: "" }, "all"), ...wanted.map((value) => make("option", { value }, value)));
    select.value = chosen;
  }

  function offer() {
    options(at("qp"), story.steps.map((step) => step.qp));
    options(at("reason"), story.steps.map((step) => step.reason));
  }

  // Steps were added, and so many at the beginning are gone.
  function goOn(gone) {
    const ladder = at("ladder");
    const isAtEnd = ladder.scrollTop + ladder.clientHeight >= ladder.scrollHeight - 40;
    if (state.chosen !== null && state.chosen < gone) choose(null);
    if (state.chosen !== null) state.chosen -= gone;
    wind(story);
    offer();
    filter();
    if (isAtEnd && state.chosen === null) ladder.scrollTop = ladder.scrollHeight;
  }

  function filter() {
    const [qp, reason] = [at("qp").value, at("reason").value];
    const matches = (step) => (!qp || !step.qp || step.qp === qp) && (!reason || step.reason === reason);
    state.visible = story.steps.map((_, k) => k).filter((k) => matches(story.steps[k]));
    at("count").textContent = state.visible.length + " of " + story.steps.length + " steps";
    if (state.chosen !== null && !state.visible.includes(state.chosen)) choose(null);
    redraw();
  }

  function redraw() {
    const room = at("ladder").clientWidth || 360;
    const width = Math.max(room * Math.max(state.zoom, 1), 300);
    at("ladder").replaceChildren(ladder(story, state.visible, width, state.zoom));
    at("zoom").textContent = Math.round(state.zoom * 100) + " %";
    mark();
  }

  function mark() {
    for (const row of at("ladder").querySelectorAll(".chosen")) row.classList.remove("chosen");
    const row = state.chosen === null ? null : at("row-" + state.chosen);
    if (row) {
      row.classList.add("chosen");
      at("ladder").setAttribute("aria-activedescendant", row.id);
    } else {
      at("ladder").removeAttribute("aria-activedescendant");
    }
    const now = state.chosen === null ? null : story.steps[state.chosen].at;
    at("charts").replaceChildren(...charts(story, now));
    return row;
  }

  function choose(index) {
    const wasHidden = at("details").hidden;
    state.chosen = index;
    at("details").hidden = index === null;
    at("step").replaceChildren(...(index === null ? [] : [describe(story, index)]));
    at("details").scrollTop = 0;
    if (wasHidden !== at("details").hidden) redraw();
    const row = mark();
    if (row) reveal(row);
  }

  // Scrolls until a row is neither behind the controls nor behind the details of a small screen.
  function reveal(chosen) {
    if (at("ladder").scrollHeight > at("ladder").clientHeight) chosen.scrollIntoView({ block: "nearest" });
    const row = chosen.getBoundingClientRect();
    const isSmall = window.innerWidth < 900;
    const first = isSmall ? 0 : at("controls").getBoundingClientRect().bottom;
    const last = isSmall ? at("details").getBoundingClientRect().top : window.innerHeight;
    if (row.top < first) window.scrollBy(0, row.top - first - row.height);
    if (row.bottom > last) window.scrollBy(0, row.bottom - last + row.height);
  }

  function move(by) {
    const place = state.visible.indexOf(state.chosen);
    go(place < 0 && by < 0 ? Infinity : place + by);
  }

  // Chooses the step in a place among those that are shown, or the nearest.
  function go(place) {
    if (state.visible.length === 0) return;
    choose(state.visible[Math.min(Math.max(place, 0), state.visible.length - 1)]);
  }

  function zoom(factor) {
    state.zoom = Math.min(Math.max(state.zoom * factor, 0.5), 3);
    redraw();
  }

  function theme(name) {
    document.documentElement.dataset.theme = name;
    at("theme").textContent = name === "dark" ? "Light" : "Dark";
  }

  const keys = {
    ArrowDown: () => move(1), ArrowUp: () => move(-1), j: () => move(1), k: () => move(-1),
    Home: () => go(0), End: () => go(Infinity), Escape: () => choose(null),
    PageDown: () => move(10), PageUp: () => move(-10), "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8),
  };

  function listen() {
    at("ladder").addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) choose(Number(row.dataset.step));
    });
    document.addEventListener("keydown", (event) => {
      const busy = event.target.closest("select, input, summary, #details");
      const action = keys[event.key];
      if (!action || event.ctrlKey || event.altKey || event.metaKey || (busy && event.key !== "Escape")) return;
      event.preventDefault();
      action();
    });
    at("qp").addEventListener("change", filter);
    at("reason").addEventListener("change", filter);
    at("before").addEventListener("click", () => move(-1));
    at("next").addEventListener("click", () => move(1));
    at("close").addEventListener("click", () => choose(null));
    at("larger").addEventListener("click", () => zoom(1.25));
    at("smaller").addEventListener("click", () => zoom(0.8));
    at("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
      if (width !== window.innerWidth) redraw();
      width = window.innerWidth;
    });
  }

  function ending() {
    const end = at("end");
    if (story.question) {
      const answer = make("details");
      answer.append(make("summary", {}, "Answer"), make("p", {}, story.question.answer));
      end.append(make("h2", {}, "Question"), make("p", {}, story.question.ask), answer);
    }
    if (story.next.length > 0) end.append(make("h2", {}, "Try next"), make("pre", {}, story.next.join("\n")));
  }

  at("title").textContent = story.name + ": " + story.title;
  for (const paragraph of story.about) at("about").lastElementChild.append(make("p", {}, paragraph));
  if (story.about.length === 0) at("about").remove();
  offer();
  const wanted = new URLSearchParams(location.hash.slice(1));
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  theme(wanted.get("theme") || (dark ? "dark" : "light"));
  if (window.innerWidth < 900) at("about").removeAttribute("open");
  wind(story);
  listen();
  ending();
  filter();
  const first = Number(wanted.get("step"));
  if (wanted.has("step") && story.steps[first]) choose(first);
  if (typeof follow === "function") follow(story, goOn);
})();
