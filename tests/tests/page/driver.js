// Uses the page as a person would, and writes what does not work into the element `verdict`.
(() => {
  const faults = [...window.faults];
  const at = (id) => document.getElementById(id);
  const all = (selector, within) => [...(within || document).querySelectorAll(selector)];
  const check = (holds, what) => { if (!holds) faults.push(what); };
  const click = (element) => element.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  const key = (name) => at("ladder").dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
  const pick = (id, value) => { at(id).value = value; at(id).dispatchEvent(new Event("change")); };
  const rows = () => all("#ladder .row");
  const chosen = () => all("#ladder .row.chosen").map((row) => Number(row.dataset.step));
  const story = JSON.parse(at("story").textContent);

  function draws() {
    check(rows().length === story.steps.length, "a row for each step");
    check(rows().every((row) => row.getBoundingClientRect().height > 10), "rows have a height");
    check(all("#ladder .arrow").length >= 5 && all("#ladder .lost").length === 1, "arrows, one of them lost");
    check(all("#charts figure").length >= 2, "charts");
    check(all("#charts path").every((path) => path.getTotalLength() > 100), "curves have a length");
    check(document.documentElement.scrollWidth <= window.innerWidth, "nothing is wider than the window");
    check(at("title").getBoundingClientRect().width > 100, "a title");
  }

  function clicks() {
    const lost = story.steps.findIndex((step) => step.flight && step.flight.fate === "lost");
    click(at("row-" + lost));
    check(!at("details").hidden && chosen()[0] === lost, "a click chooses a packet");
    const bytes = all("#details .byte");
    check(bytes.length === story.steps[lost].blocks[0].hex.length / 2, "all bytes are shown");
    click(bytes[5]);
    const lit = all("#details tr.lit");
    check(lit.length === 1 && lit[0].textContent.includes("dest QP"), "a byte lights its field");
    click(all("#details tr")[0]);
    check(all("#details .byte.lit").length === 1 && all("#details tr.lit").length === 1, "a field lights its bytes");
    click(at("next"));
    check(chosen()[0] === lost + 1, "the next step");
    click(at("close"));
    check(at("details").hidden && chosen().length === 0, "the details close");
  }

  function keys() {
    key("Home");
    check(chosen()[0] === 0, "Home chooses the first step");
    key("ArrowDown");
    key("ArrowDown");
    check(chosen()[0] === 2 && at("ladder").getAttribute("aria-activedescendant") === "row-2", "arrows move");
    key("End");
    check(chosen()[0] === story.steps.length - 1, "End chooses the last step");
    const row = at("row-" + chosen()[0]).getBoundingClientRect();
    check(row.bottom <= window.innerHeight && row.top >= 0, "the chosen row is in view");
    const height = at("ladder").firstChild.getBoundingClientRect().height;
    key("+");
    check(at("ladder").firstChild.getBoundingClientRect().height > height * 1.1, "+ makes it larger");
    key("-");
    key("Escape");
    check(at("details").hidden, "Escape closes the details");
  }

  function filters() {
    pick("reason", "lost");
    check(rows().length === 1, "a filter by reason");
    pick("reason", "");
    const qp = story.steps.find((step) => step.qp).qp;
    pick("qp", qp);
    const expected = story.steps.filter((step) => !step.qp || step.qp === qp).length;
    check(rows().length === expected && expected < story.steps.length, "a filter by queue pair");
    pick("qp", "");
    check(rows().length === story.steps.length, "without a filter all is shown");
  }

  function themes() {
    const paper = () => getComputedStyle(document.body).backgroundColor;
    const before = paper();
    click(at("theme"));
    check(paper() !== before, "light and dark differ");
    click(at("theme"));
  }

  function safe() {
    check(all("img, iframe").length === 0, "texts make no elements");
    check(window.hacked === undefined, "texts run no scripts");
    check(at("title").textContent === story.name + ": " + story.title, "texts are shown as they are");
  }

  for (const test of [draws, clicks, keys, filters, themes, safe]) {
    try {
      test();
    } catch (error) {
      faults.push(test.name + ": " + error);
    }
  }
  const verdict = document.createElement("pre");
  verdict.id = "verdict";
  verdict.textContent = faults.length === 0 ? "all works" : faults.join("; ");
  document.body.append(verdict);
})();
