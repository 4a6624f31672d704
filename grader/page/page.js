"use strict";
// A served page waits for the next result and puts it in place; the reader's place is kept.
const state = document.getElementById("state");
async function renew() {
  let version = "";
  for (;;) {
    try {
      const answer = await fetch("changed?" + version);
      if (answer.status === 204) continue;  // nothing new; the server does not let us wait for ever
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (version && answer.ok) {
        const open = [...document.querySelectorAll("details")].map(one => one.open);
        const focus = document.activeElement?.tagName === "BUTTON";
        document.querySelector("main").replaceWith(next.querySelector("main"));
        document.querySelector("header .course")?.replaceWith(next.querySelector("header .course") ?? "");
        document.title = next.title;
        document.querySelectorAll("details").forEach((one, i) => { one.open = !!open[i]; });
        if (focus) document.querySelector("main button")?.focus();
        state.textContent = "Renewed " + new Date().toLocaleTimeString() + ": " + next.title;
        slide();
      }
      version = answer.headers.get("ETag") ?? version;
    } catch {  // the watch has ended, or this computer slept
      state.textContent = "The watch has ended; this page stays as it is.";
      await new Promise(done => setTimeout(done, 2000));
    }
  }
}
// Pictures with a slider: each of its frames is a group, and without JavaScript all are shown.
function slide() {}
slide();
if (document.body.hasAttribute("data-live")) renew();
