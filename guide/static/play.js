// Three things to play with: a mask in tiles, the online softmax as bars, the two walks of the backward.
// Numbers of the last two are in the page; of the mask they are counted here.  Ordinary inputs: all of
// it works by keyboard.  What is printed is the figure beside it.

// What a causal mask with a window W and Z sinks makes of the tiles of BLOCK: {kinds, pairs}.
function maskTiles(N, BLOCK, W, Z) {
  const keeps = (i, j) => j <= i && (i - j < W || j < Z);
  const tiles = Math.ceil(N / BLOCK);
  const kinds = [];
  let pairs = 0;
  for (let t = 0; t < tiles; t++) {
    kinds.push([]);
    for (let u = 0; u < tiles; u++) {
      let seen = 0, all = 0;
      for (let i = t * BLOCK; i < Math.min((t + 1) * BLOCK, N); i++)
        for (let j = u * BLOCK; j < Math.min((u + 1) * BLOCK, N); j++) {
          all++;
          if (keeps(i, j)) seen++;
        }
      pairs += seen;
      const ragged = (u + 1) * BLOCK > N;
      kinds[t].push(seen === 0 ? "skipped" : seen === all && !ragged ? "whole" : "cut");
    }
  }
  return { kinds, pairs };
}

document.addEventListener("DOMContentLoaded", () => {
  let ids = 0;
  const make = (tag, text, kind) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };
  const drawn = (tag, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const labelled = (words, input, shown) => {
    const row = make("div", undefined, "input");
    const label = make("label", words);
    label.htmlFor = input.id = `play-${++ids}`;
    row.append(label, input, ...(shown ? [shown] : []));
    return row;
  };
  const slider = (words, least, most, value, tell = String) => {
    const input = make("input");
    Object.assign(input, { type: "range", min: least, max: most, step: 1 });
    input.value = value;
    const shown = make("span", "", "value");
    const say = () => {
      shown.textContent = tell(Number(input.value));
      input.setAttribute("aria-valuetext", shown.textContent);
    };
    input.addEventListener("input", say);
    say();
    return { row: labelled(words, input, shown), input, say, get value() { return Number(input.value); } };
  };
  const choice = (words, names) => {
    const input = make("select");
    for (const name of names) input.append(make("option", name));
    return { row: labelled(words, input), input, get value() { return input.value; } };
  };
  const said = () => {
    const output = make("p", undefined, "said");
    output.setAttribute("aria-live", "polite");
    return output;
  };
  // An SVG of that size, whose tile() draws an area of a kind, hatched where the mask cuts.
  const picture = (words, viewBox, size) => {
    const svg = drawn("svg", { viewBox, role: "img" });
    svg.append(drawn("title", {}, words));
    const hatch = drawn("pattern", { id: `play-hatch-${++ids}`, width: 1, height: 1,
      patternUnits: "userSpaceOnUse", patternTransform: `rotate(45) scale(${size / 60})` });
    hatch.append(drawn("rect", { width: 0.25, height: 1, class: "hatch" }));
    svg.append(hatch);
    svg.tile = (x, y, width, height, kind) => {
      svg.append(drawn("rect", { x, y, width, height, class: kind }));
      if (kind === "cut")
        svg.append(drawn("rect", { x, y, width, height, fill: `url(#${hatch.id})` }));
    };
    return svg;
  };
  const map = (words, size) => picture(words, `-0.5 -0.5 ${size + 1} ${size + 1}`, size);

  const plays = {
    mask(place) {
      const N = slider("N, the length", 8, 64, 32);
      const BLOCK = slider("BLOCK, a tile's side", 1, 4, 2, (x) => String(2 ** x));
      const W = slider("W, the window", 1, 64, 12, (x) => (x >= N.value ? `${x}, all` : String(x)));
      const Z = slider("Z, the sinks (S in the files)", 0, 16, 2);
      const told = said();
      const canvas = make("div", undefined, "map");
      place.append(N.row, BLOCK.row, W.row, Z.row, told, canvas);
      const show = () => {
        W.say();
        const [n, block, w, z] = [N.value, 2 ** BLOCK.value, W.value, Z.value];
        const { kinds, pairs } = maskTiles(n, block, w, z);
        const count = (kind) => kinds.flat().filter((one) => one === kind).length;
        const [whole, cut, skipped] = ["whole", "cut", "skipped"].map(count);
        const all = whole + cut + skipped;
        told.textContent = `${whole} whole, ${cut} cut, ${skipped} skipped. Visited: ${whole + cut} of ` +
          `${all} tiles. Visible: ${pairs} pairs of the ${(whole + cut) * block ** 2} in these tiles.`;
        const svg = map(`Queries down, keys to the right: ${told.textContent}`, n);
        kinds.forEach((row, t) => row.forEach((kind, u) => {
          const [right, below] = [Math.min((u + 1) * block, n), Math.min((t + 1) * block, n)];
          svg.tile(u * block, t * block, right - u * block, below - t * block, "skipped");
          for (let i = t * block; i < below && kind !== "skipped"; i++)
            for (let j = u * block, start = null; j <= right; j++) {
              const seen = j < right && j <= i && (i - j < w || j < z);
              if (seen && start === null) start = j;
              if (!seen && start !== null) { svg.tile(start, i, j - start, 1, kind); start = null; }
            }
          svg.append(drawn("rect", { x: u * block, y: t * block, width: right - u * block,
            height: below - t * block, class: "border" }));
        }));
        canvas.replaceChildren(svg);
      };
      for (const one of [N, BLOCK, W, Z]) one.input.addEventListener("input", show);
      show();
    },

    bars(place, data) {
      const row = choice("scores", Object.keys(data));
      const tile = choice("keys a tile", ["2", "1", "3"]);
      const at = slider("tiles seen", 1, 3, 1);
      const told = said();
      const canvas = make("div", undefined, "bars");
      place.append(row.row, tile.row, at.row, told, canvas);
      const show = () => {
        const frames = data[row.value][tile.value];
        at.input.max = frames.length;
        at.say();
        const frame = frames[at.value - 1];
        told.textContent = `Scores ${frame.s} arrive: m_i = ${frame.m}, alpha = ${frame.alpha}, ` +
          `l_i = ${frame.l}, acc = ${frame.acc}. ` + (at.value === 1 ? "Nothing was there before." :
          frame.alpha === "1" ? "The old bars stay as they are." :
          `Every old bar shrinks to ${frame.alpha} of its height.`);
        const svg = picture(told.textContent, "0 0 60 34", 60);
        for (let j = 0; j < 6; j++) {
          const weight = frame.weights[j];
          const x = 10 * j + 1;
          svg.append(drawn("text", { x: x + 4, y: 33 }, `key ${j}`));
          if (weight === undefined) continue;
          const old = j < frame.weights.length - frame.new;
          svg.tile(x, 28 - 22 * weight, 8, 22 * weight, old ? "whole" : "cut");
          svg.append(drawn("text", { x: x + 4, y: 27 - 22 * weight }, weight.toPrecision(2)));
        }
        svg.append(drawn("line", { x1: 0, x2: 60, y1: 28, y2: 28, class: "border" }));
        canvas.replaceChildren(svg);
      };
      const restart = () => { at.input.value = 1; show(); };
      row.input.addEventListener("input", restart);
      tile.input.addEventListener("input", restart);
      at.input.addEventListener("input", show);
      show();
    },

    walks(place, data) {
      const mask = choice("mask", Object.keys(data));
      const mine = slider("tile that a program owns", 0, 5, 2);
      const at = slider("tiles visited", 1, 6, 1);
      const told = said();
      const maps = make("div", undefined, "maps");
      place.append(mask.row, mine.row, at.row, told, maps);
      const show = () => {
        const { kinds, dq, dkdv } = data[mask.value];
        const walks = [dq[mine.value], dkdv[mine.value]];
        at.input.max = Math.max(...walks.map((walk) => walk.length));
        at.say();
        const words = walks.map((walk, side) => {
          const name = ["dq", "dkdv"][side];
          const own = ["query", "key"][side], other = ["key", "query"][side];
          if (at.value > walk.length) return `${name} has ended after ${walk.length}.`;
          const [start, phase] = walk[at.value - 1];
          return `${name} owns ${own} tile ${mine.value}; ${at.value} of ${walk.length}: ` +
            `${other} tile ${start / 4}, ${phase}.`;
        });
        told.textContent = words.join(" ");
        maps.replaceChildren(...walks.map((walk, side) => {
          const box = make("div", ["dq: keys pass", "dkdv: queries pass"][side], "map");
          const svg = map(words[side], 6);
          kinds.forEach((row, t) => row.forEach((kind, u) => {
            svg.tile(u, t, 1, 1, kind);
            svg.append(drawn("rect", { x: u, y: t, width: 1, height: 1, class: "border" }));
          }));
          walk.slice(0, at.value).forEach(([start], k) => {
            const [x, y] = side === 0 ? [start / 4, mine.value] : [mine.value, start / 4];
            svg.append(drawn("rect", { x: x + 0.06, y: y + 0.06, width: 0.88, height: 0.88,
              class: k === at.value - 1 ? "here" : "been" }));
            svg.append(drawn("text", { x: x + 0.5, y: y + 0.66 }, String(k + 1)));
          });
          box.append(svg);
          return box;
        }));
      };
      const restart = () => { at.input.value = 1; show(); };
      mask.input.addEventListener("input", restart);
      mine.input.addEventListener("input", restart);
      at.input.addEventListener("input", show);
      show();
    },
  };
  for (const place of document.querySelectorAll("div.play")) {
    const data = JSON.parse(place.querySelector("script").textContent);
    plays[place.dataset.play](place, data);
  }
});
