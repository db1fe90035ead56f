// Keeps a story up to date: asks the server that sent this page for what happened since.

function follow(story, goOn) {
  const at = (id) => document.getElementById(id);
  const state = { first: 0, next: 0, held: false };

  function take(news) {
    // Where steps were missed, or the server is another one, all begins anew.
    const gone = news.from === state.next ? Math.min(Math.max(news.first - state.first, 0), story.steps.length) : story.steps.length;
    story.steps.splice(0, gone);
    story.steps.push(...news.steps);
    state.next = news.from + news.steps.length;
    state.first = state.next - story.steps.length;
    Object.assign(story, { hosts: news.hosts, series: news.series, begin: news.begin });
    at("news").textContent = news.frames + " packets seen, " + news.left_out + " packets and events not shown";
    goOn(gone);
  }

  async function ask() {
    try {
      const answer = await fetch("news?from=" + state.next, { cache: "no-store" });
      const news = answer.ok ? await answer.json() : null;
      if (!state.held && news) take(news);
      if (!news) throw new Error(answer.status);
    } catch {
      at("news").textContent = "rnic watch does not answer";
    }
  }

  async function go() {
    if (!state.held && !document.hidden) await ask();
    setTimeout(go, 1000);
  }

  at("hold").addEventListener("click", () => {
    state.held = !state.held;
    at("hold").textContent = state.held ? "Go on" : "Hold";
  });
  document.documentElement.classList.add("live");
  at("live").hidden = false;
  go();
}
