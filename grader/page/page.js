"use strict";
// A served page waits for the next result and puts it in place; the reader's place is kept.
const state = document.getElementById("state");
async function renew() {
  let version = "", lost = "";
  for (;;) {
    try {
      const answer = await fetch("changed?" + version);
      if (answer.status === 204) continue;  // nothing new; the server does not let us wait for ever
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (version && answer.ok) {
        const focus = where(document.activeElement) || lost, before = document.title;
        document.querySelector("main").replaceWith(next.querySelector("main"));
        document.querySelector("header .course")?.replaceWith(next.querySelector("header .course") ?? "");
        document.title = next.title;
        slide();
        unfold();
        const found = focus && document.querySelector(focus);  // a picture may come again later
        lost = found ? "" : focus;
        if (found) found.focus();
        if (next.title !== before) {  // a screen reader says it; not every picture that comes later
          state.textContent = "Renewed " + new Date().toLocaleTimeString() + ": " + next.title;
        }
      }
      version = answer.headers.get("ETag") ?? version;
    } catch {  // the watch has ended, or this computer slept
      state.textContent = "The watch has ended; this page stays as it is.";
      await new Promise(done => setTimeout(done, 2000));
    }
  }
}
// Where the keyboard is, as a selector; "" if nowhere in what is replaced.
function where(element) {
  const named = element?.closest("[data-name]");
  const inside = named ? `[data-name="${CSS.escape(named.dataset.name)}"] ` : "main ";
  const label = element?.closest("label");
  if (label) return inside + (label.nextElementSibling ? "label:first-child" : "label:last-child") + " input";
  return element?.matches("main button, main summary, main pre") ? inside + element.localName : "";
}
// Loads and stores: sliders pick a program, and a turn of its loop; 0 is all turns.  What was
// picked stays picked after a save.  Without JavaScript all turns of one program are shown.
const picked = new Map();
function slide() {
  for (const one of document.querySelectorAll(".frames")) {
    const [program, turn] = one.querySelectorAll("input");
    const said = one.querySelector(".said");
    const name = one.closest("section").getAttribute("aria-labelledby") + one.dataset.name;
    const programs = [...one.querySelectorAll(".program")];
    [program.value, turn.value] = picked.get(name) ?? [program.value, 0];
    const show = () => {
      const now = programs[program.value];
      const turns = [...now.querySelectorAll(".turn")];
      turn.max = turns.length;
      programs.forEach(each => each.classList.toggle("off", each !== now));
      turns.forEach((each, i) => {
        each.classList.toggle("off", turn.value > 0 && i >= turn.value);
        each.classList.toggle("past", turn.value > 0 && i < turn.value - 1);
      });
      const words = turn.value > 0 ? turns[turn.value - 1].dataset.says : "All its turns.";
      said.textContent = "Program " + program.value + ". " + words;
      turn.setAttribute("aria-valuetext", words);
      picked.set(name, [program.value, turn.value]);
    };
    for (const input of [program, turn]) input.addEventListener("input", show);
    one.querySelector(".sliders").classList.add("on");
    show();
  }
}
// What was unfolded stays so.
const unfolded = new Map();
function unfold() {
  for (const one of document.querySelectorAll("details")) {
    one.open = unfolded.get(one.dataset.name) ?? false;
    one.addEventListener("toggle", () => unfolded.set(one.dataset.name, one.open));
  }
}
slide();
unfold();
if (document.body.hasAttribute("data-live")) renew();
