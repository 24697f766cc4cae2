// The keyboard: "/" searches, "?" shows the keys, arrows and j/k move in lists, Enter opens, g and a letter goes.
const EDITABLE = "input, textarea, select, [contenteditable]";
let leader = 0;

function rows() {
  return [...document.querySelectorAll("main table[data-keys] tbody tr")].filter((row) => row.offsetParent);
}

function choose(step) {
  const all = rows();
  if (!all.length) return;
  const now = all.findIndex((row) => row.classList.contains("chosen"));
  const next = Math.max(0, Math.min(all.length - 1, now + step));
  all[now]?.classList.remove("chosen");
  all[next].classList.add("chosen");
  const link = all[next].querySelector("a, button");
  link?.focus({ preventScroll: true });
  all[next].scrollIntoView({ block: "nearest" });
}

function go(letter) {
  const link = document.querySelector(`.nav a[data-key="${CSS.escape(letter)}"]`);
  if (link) link.click();
  return Boolean(link);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    document.activeElement?.blur();
    return;
  }
  if (event.target.closest(EDITABLE) || document.querySelector("dialog[open]")) return;
  if (leader && Date.now() - leader < 1200) {
    leader = 0;
    if (go(event.key)) event.preventDefault();
    return;
  }
  const actions = {
    "/": () => document.querySelector("[data-search]")?.focus(),
    "?": () => document.getElementById("help")?.showModal(),
    j: () => choose(1),
    ArrowDown: () => choose(1),
    k: () => choose(-1),
    ArrowUp: () => choose(-1),
    n: () => document.querySelector('a[rel="next"]')?.click(),
    p: () => document.querySelector('a[rel="prev"]')?.click(),
    t: () => window.toggleTheme(),
    g: () => { leader = Date.now(); },
  };
  const isArrow = event.key.startsWith("Arrow");
  if (!actions[event.key] || (isArrow && !rows().length)) return;
  event.preventDefault();
  actions[event.key]();
}

document.addEventListener("keydown", onKey);
document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-action]");
  if (!target) return;
  const [action, name] = target.dataset.action.split(":");
  if (action === "theme") window.toggleTheme();
  if (action === "show") document.getElementById(name)?.showModal();
  if (action === "close") target.closest("dialog")?.close();
  if (action === "copy") navigator.clipboard?.writeText(target.dataset.text).then(() => {
    const before = target.textContent;
    target.textContent = "Copied";
    setTimeout(() => { target.textContent = before; }, 1200);
  });
});
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
});

// On a phone the sections scroll sideways; the current one must be seen.
document.querySelector(".nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
