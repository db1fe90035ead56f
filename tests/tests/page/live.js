// Uses the page of `rnic watch --web` while packets come, and writes what does not work into the
// element `verdict`.
(async () => {
  const faults = window.faults;
  const at = (id) => document.getElementById(id);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const check = (holds, what) => { if (!holds) faults.push(what); };
  const click = (element) => element.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  const wait = (time) => new Promise((done) => setTimeout(done, time));
  const rows = () => all("#ladder .row");
  const seen = () => Number(at("news").textContent.split(" ")[0]);

  // Waits also by the clock of the wall: that of the page runs ahead wherever nothing is asked of the
  // server.
  async function until(holds, what) {
    for (let times = 0; times < 40 && !holds(); times += 1) {
      await fetch("/pause");
      await wait(250);
    }
    check(holds(), what);
  }

  async function comes() {
    await until(() => rows().length > 20 && all("#ladder .arrow").length > 20, "packets come");
    const before = seen();
    await until(() => seen() > before, "more packets come");
    check(all("#ladder .again").length > 0 || all("#ladder .lost").length > 0, "a loss is shown");
    check(document.documentElement.scrollWidth <= window.innerWidth, "nothing is wider than the window");
    check(at("qp").options.length > 1 && at("reason").options.length > 1, "filters have something to offer");
    await until(() => all("#charts path").some((path) => path.getTotalLength() > 100), "curves");
  }

  async function holds() {
    click(at("hold"));
    const [before, count] = [at("news").textContent, rows().length];
    await wait(2200);
    check(at("news").textContent === before && rows().length === count, "what is held stays");
    const packet = rows().find((row) => row.querySelector(".arrow"));
    click(packet);
    check(all("#ladder .chosen").length === 1 && !at("details").hidden, "a click chooses a packet");
    click(all("#details .byte")[5]);
    check(all("#details tr.lit").length === 1, "a byte lights its field");
    click(at("close"));
    click(at("hold"));
    await until(() => at("news").textContent !== before, "it goes on");
  }

  try {
    await comes();
    await holds();
  } catch (error) {
    faults.push(String(error));
  }
  const verdict = document.createElement("pre");
  verdict.id = "verdict";
  verdict.textContent = faults.length === 0 ? "all works" : faults.join("; ");
  document.body.append(verdict);
})();
