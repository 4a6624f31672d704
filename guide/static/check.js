// Checks the answer to an exercise on its page, as guide/exercises.py does at a prompt.
function hashAnswer(text) {
  let value = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) value = Math.imul(value ^ byte, 0x01000193) >>> 0;
  return value.toString(16).padStart(8, "0");
}

function judgeAnswer(check, got) {
  const number = check.number;
  const keys = (x) => {
    const [digits, exponent] = x.toExponential(2).split("e");
    return [`${digits}e${Number(exponent)}`, ...(Number.isInteger(x) ? [String(x)] : [])];
  };
  const fits = (hashed) => got.length === hashed.length && hashed.every((one, i) =>
    keys(got[i]).some((key) => one.includes(hashAnswer(`${number}/${i}/${key}`))));
  if (fits(check.answer)) return `${number}: right.`;
  if (got.length !== check.answer.length)
    return `${number}: want ${check.answer.length} numbers; got ${got.length}.`;
  for (const [hashed, words] of check.slips)
    if (fits(hashed)) return `${number}: not yet. ${words}`;
  return `${number}: not right, and none of the usual slips.`;
}

document.addEventListener("DOMContentLoaded", () => {
  for (const form of document.querySelectorAll("form.check")) {
    const check = JSON.parse(form.dataset.check);
    const input = document.createElement("input");
    const many = check.answer.length;
    input.placeholder = many === 1 ? "a number" : `${many} numbers`;
    input.setAttribute("aria-label", `Answer to exercise ${check.number}`);
    input.autocomplete = "off";
    const button = document.createElement("button");
    button.textContent = "check";
    const told = document.createElement("output");
    form.append(input, button, told);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const got = input.value.replaceAll("−", "-").split(/[\s,]+/).filter(Boolean).map(Number);
      told.textContent = got.some(Number.isNaN) || !got.length
        ? `want ${many === 1 ? "a number" : `${many} numbers`}; got ${input.value || "nothing"}`
        : judgeAnswer(check, got);
    });
  }
});
