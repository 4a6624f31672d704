// Steps through the tiles of a causal forward.  The frames are in the page; nothing is computed here.
document.addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("walk");
  if (!place) return;
  const frames = JSON.parse(document.getElementById("walk-frames").textContent);
  const columns = ["s", "alpha", "p", "m", "l", "acc"];
  const names = { m: "m_i", l: "l_i" };
  let now = 0;

  const make = (tag, text, kind) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };

  const back = make("button", "← back");
  const on = make("button", "next tile →");
  const told = make("span");
  told.setAttribute("aria-live", "polite");
  const moves = make("div", undefined, "moves");
  moves.append(back, on, told);
  const map = make("div", undefined, "map");
  const wide = make("div", undefined, "wide");
  place.append(moves, map, wide);

  function show() {
    const frame = frames[now];
    told.textContent = `${now + 1} of ${frames.length}: query tile ${frame.query_tile}, ` +
      `key tile ${frame.key_tile}, ${frame.phase}`;
    back.disabled = now === 0;
    on.disabled = now === frames.length - 1;

    map.replaceChildren();
    for (let i = 0; i < 3; i++) for (let j = 0; j < 3; j++) {
      const at = frames.findIndex((f) => f.query_tile === i && f.key_tile === j);
      map.append(make("span", at < 0 ? "" : `S${i}${j}`,
        at < 0 ? "never" : at === now ? "here" : at < now ? "done" : ""));
    }

    const table = make("table");
    const head = make("tr");
    head.append(make("th", "query"), ...columns.map((c) => make("th", names[c] || c)));
    table.append(head);
    const before = now > 0 && frames[now - 1].query_tile === frame.query_tile ? frames[now - 1] : null;
    for (let r = 0; r < 2; r++) {
      const row = make("tr");
      row.append(make("td", String(2 * frame.query_tile + r)));
      for (const c of columns)
        row.append(make("td", frame[c][r],
          "mlacc".includes(c) && before && before[c][r] !== frame[c][r] ? "changed" : ""));
      table.append(row);
    }
    wide.replaceChildren(table);
    if (frame.o) wide.append(make("p", `The last tile: o = acc / l_i = ${frame.o.join(" and ")}, ` +
      `lse = m_i + log(l_i) = ${frame.lse.join(" and ")}.`));
  }

  back.addEventListener("click", () => { now--; show(); });
  on.addEventListener("click", () => { now++; show(); });
  place.tabIndex = 0;
  place.addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight" && !on.disabled) { now++; show(); }
    if (event.key === "ArrowLeft" && !back.disabled) { now--; show(); }
  });
  show();
});
