// Checks the answer to an exercise on its page, as guide/exercises.py does at a prompt.
function judgeAnswer(check, got) {
  const close = (want) => got.length === want.length && want.every((b, i) =>
    Number.isInteger(b) ? got[i] === b
      : Math.abs(got[i] - b) <= 5e-3 * Math.max(Math.abs(got[i]), Math.abs(b)));
  const number = check.number;
  if (close(check.answer)) return `${number}: right.`;
  if (got.length !== check.answer.length)
    return `${number}: want ${check.answer.length} numbers; got ${got.length}.`;
  for (const [numbers, words] of check.slips)
    if (close(numbers)) return `${number}: not yet. ${words}`;
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
