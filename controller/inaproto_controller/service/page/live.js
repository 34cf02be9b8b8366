// Loads the page anew, part by part, and says when the controller does not answer: what stands here is old then.
"use strict";
(() => {
  const ANSWER_MS = 10000;
  const body = document.body;
  const every_ms = 1000 * Number(body.dataset.refresh);
  const connection = document.getElementById("connection");
  let answered = performance.now();  // of this browser; its clock may differ from the controller's
  let problem = "";
  let timer = 0;

  const show = () => {
    const age = Math.round((performance.now() - answered) / 1000);
    connection.hidden = !problem;
    body.classList.toggle("stale", Boolean(problem));
    if (problem) {
      connection.textContent = `No connection to the controller since ${body.dataset.at} UTC, ${age} s ago (${problem}). ` +
        "What is below is of then; it is asked again and again.";
    }
  };

  const take = (text) => {
    const found = new DOMParser().parseFromString(text, "text/html");
    const parts = [...document.querySelectorAll("[data-part]")];
    const fresh = [...found.querySelectorAll("[data-part]")];
    if (parts.map((one) => one.id).join() !== fresh.map((one) => one.id).join()) {
      location.reload();
      return;
    }
    parts.forEach((one, place) => {
      if (one.outerHTML !== fresh[place].outerHTML) {
        one.replaceWith(document.adoptNode(fresh[place]));
      }
    });
    body.dataset.at = found.body.dataset.at;
  };

  const load = async () => {
    clearTimeout(timer);
    if (document.hidden) {
      return;  // whoever comes back sees it at once
    }
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
      if (!answer.ok) {
        throw new Error(`it answers ${answer.status}`);
      }
      take(await answer.text());
      answered = performance.now();
      problem = "";
    } catch (error) {
      problem = error.message || "it does not answer";
    }
    show();
    clearTimeout(timer);
    timer = setTimeout(load, every_ms);
  };

  if (every_ms > 0) {
    timer = setTimeout(load, every_ms);
    setInterval(show, 1000);
    document.addEventListener("visibilitychange", load);
  }
})();
