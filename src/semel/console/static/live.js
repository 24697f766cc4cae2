// Live pages: when the server says that something was sampled again, the page is fetched and its live parts
// are replaced. A part that is being used (a focused field, an open dialog or details, a button or link that is
// held down: a click is lost if its target goes before the button is released) is left alone.
const main = document.querySelector("main[data-live]");
const lamp = document.querySelector(".live");
const AGAIN_MS = 10_000;
let source = null;
let busy = false;
let again = false;

function show(isOn) {
  if (!lamp) return;
  lamp.classList.toggle("on", isOn);
  lamp.classList.toggle("off", !isOn);
  lamp.textContent = isOn ? "live" : "connecting";
}

function isUsed(part) {
  const focused = document.activeElement;
  if (part.contains(focused) && focused.matches("input, textarea, select")) return true;
  if (part.matches(":active")) return true;
  return Boolean(part.querySelector("dialog[open], details[open]"));
}

function replace(part, fresh) {
  if (!fresh || part.innerHTML === fresh.innerHTML || isUsed(part)) return;
  const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const chosen = [...part.querySelectorAll("tbody tr")].findIndex((row) => row.classList.contains("chosen"));
  const scrolled = [...part.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  part.innerHTML = fresh.innerHTML;
  part.querySelectorAll(".scroll").forEach((each, index) => { each.scrollLeft = scrolled[index] ?? 0; });
  if (chosen >= 0) part.querySelectorAll("tbody tr")[chosen]?.classList.add("chosen");
  if (focused) part.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  part.dispatchEvent(new CustomEvent("replaced", { bubbles: true }));
}

export async function refresh() {
  if (busy) { again = true; return; }
  busy = true;
  try {
    const response = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!response.ok || response.redirected) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const part of document.querySelectorAll("[data-part]")) {
      replace(part, page.querySelector(`[data-part="${part.dataset.part}"]`));
    }
  } catch { /* The broker or the console is away; the next event tries again. */ } finally {
    busy = false;
    if (again) { again = false; setTimeout(refresh, 200); }
  }
}

function open() {
  if (source || !main || document.hidden) return;
  source = new EventSource(`/changes?of=${main.dataset.live}`);
  source.onopen = () => show(true);
  source.onmessage = refresh;
  source.onerror = () => {
    show(false);
    // A browser does not try again by itself after a refusal, such as that too many pages are open.
    if (source?.readyState === EventSource.CLOSED) { close(); setTimeout(open, AGAIN_MS); }
  };
}

function close() {
  source?.close();
  source = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
addEventListener("pagehide", close);
addEventListener("pageshow", open);
open();
