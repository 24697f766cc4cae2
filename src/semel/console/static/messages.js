// The page of messages: searching on with progress, following the end, opening a record beside the list,
// selecting for a replay, and saved views. Records are inserted as text, never as markup.
const found = document.getElementById("found");
const sheet = document.getElementById("sheet");
const ROWS_MAX = 500;
const TAGS = { committed: "good", open: "odd", aborted: "bad", undecided: "odd" };
const EXPLAINED = {
  committed: "its transaction is committed",
  aborted: "its transaction is aborted: readers of committed records never see it",
};

function make(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < 3) { bytes /= 1024; unit += 1; }
  return unit ? `${bytes.toFixed(1)} ${units[unit]}` : `${bytes} B`;
}

const whole = (value) => value.toLocaleString("en");
const count = (value, one, many = `${one}s`) => `${whole(value)} ${value === 1 ? one : many}`;
const isQuery = found?.dataset.query.includes("q=");

// ---- rows, as in templates/messages_parts.html

function fill(cell, shown) {
  if (shown.kind === "null" || shown.text === "") {
    cell.append(make("span", "muted", shown.kind === "null" ? "null" : "empty"));
    return;
  }
  cell.append(shown.text);
  if (shown.is_truncated) cell.append(make("span", "muted", "…"));
}

function tag(mark, explained) {
  const made = make("span", `tag ${TAGS[mark] ?? ""}`, mark);
  made.title = explained;
  return made;
}

function row(each) {
  const line = make("tr");
  Object.assign(line.dataset, {
    partition: each.partition, offset: each.offset, producer: each.producer_id ?? "", mark: each.mark,
  });
  const pick = make("input");
  pick.type = "checkbox";
  pick.value = `${each.partition}:${each.offset}`;
  pick.disabled = each.mark === "control" || each.is_unreadable;
  pick.setAttribute("aria-label", `Select partition ${each.partition}, offset ${each.offset}`);
  const link = make("a", "record mono", `${each.partition}/${each.offset}`);
  link.href = each.address + (found.dataset.view === "auto" ? "" : `?view=${found.dataset.view}`);
  const cells = ["pick", "where", "when muted", "state", "key mono", "value mono", "headers", "num size"].map(
    (name) => line.appendChild(make("td", name)),
  );
  cells[0].append(pick);
  cells[1].append(link);
  const today = new Date().toISOString().slice(0, 10);
  const day = each.time?.startsWith(today) ? "" : `${each.time?.slice(0, 10)} `;
  cells[2].textContent = each.time ? day + each.time.slice(11, 23) : "–";
  if (each.time) cells[2].title = each.time;
  if (each.mark !== "plain") cells[3].append(tag(each.mark, each.explained));
  const [key, value, headers] = [4, 5, 6].map((index) => cells[index].appendChild(make("div", "clip")));
  fill(key, each.key);
  if (each.note) value.append(make("span", each.is_unreadable ? "bad" : "muted", each.note));
  else fill(value, each.value);
  headers.classList.add("small");
  for (const header of each.headers.slice(0, 3)) {
    const one = make("span", "mono", `${header.name}: `);
    fill(one, header);
    headers.append(one, " ");
  }
  if (each.header_count > 3) headers.append(make("span", "muted", `and ${each.header_count - 3} more`));
  cells[7].textContent = size(each.size);
  return line;
}

const table = found?.querySelector("table");
const body = table?.tBodies[0];

function show(rows, isFirst) {
  if (!rows.length) return;
  table.hidden = false;
  document.getElementById("nothing").hidden = true;
  const lines = rows.map(row);
  highlight(...lines);
  if (!isFirst) { body.append(...lines); return; }
  for (const line of lines) line.classList.add("flash");
  body.prepend(...lines.reverse());
  while (body.rows.length > ROWS_MAX) body.lastElementChild.remove();
}

// What was searched for is highlighted without changing the text, where the browser can do that.
const WORDS = [...(found?.dataset.words ?? "").matchAll(/(\S*?)"([^"]*)"|(\S+)/g)]
  .map(([, field, quoted, word]) => (quoted === undefined ? word : field + quoted))
  .filter((term) => !/^(-|\$|is:|producer:)/.test(term))
  .map((term) => term.replace(/^(key|value|header(\.[^:]*)?):/, "").toLowerCase())
  .filter((term) => term && !term.startsWith("/"));

function highlight(...roots) {
  if (!WORDS.length || !CSS.highlights) return;
  const made = CSS.highlights.get("found") ?? new Highlight();
  for (const root of roots) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const text = node.data.toLowerCase();
      if (text.length !== node.data.length || !node.parentElement.closest(".key, .value, .headers, .content")) continue;
      for (const word of WORDS) {
        for (let at = text.indexOf(word); at >= 0 && made.size < 5000; at = text.indexOf(word, at + word.length)) {
          const range = new Range();
          range.setStart(node, at);
          range.setEnd(node, at + word.length);
          made.add(range);
        }
      }
    }
  }
  CSS.highlights.set("found", made);
}

// ---- searching on

const says = document.getElementById("says");
const bar = document.getElementById("progress");
const stop = document.getElementById("stop");
const more = document.getElementById("more");
const moreSays = document.getElementById("more-says");
let search = null;
let begun = null; // what was searched before this part

function told(state, isOver) {
  const scanned = begun.scanned + state.scanned;
  const matched = begun.matched + state.matched;
  bar.value = begun.total ? scanned / begun.total : 1;
  const hidden = state.hidden + begun.hidden;
  const place = isQuery || !isOver ? ` in ${whole(scanned)} of ${count(begun.total, "offset")}` : "";
  says.textContent = (isQuery ? count(matched, "match", "matches") : count(matched, "record")) + place
    + (hidden ? ` · ${count(hidden, "aborted record")} hidden` : "") + (isOver ? "" : ` · ${size(state.bytes)} read`);
  found.dataset.next = state.next ?? "";
  begun.last = { scanned, matched, hidden };
}

function ended(text) {
  search?.close();
  search = null;
  stop.hidden = true;
  found.dataset.searching = "";
  Object.assign(begun, begun.last);
  const next = found.dataset.next;
  more.hidden = !next;
  more.href = `${found.dataset.base}?${next}`;
  moreSays.textContent = text;
  if (!body.rows.length) document.querySelector("#nothing strong").textContent = next ? "Nothing found yet." : "Nothing found.";
}

function searchOn(next) {
  if (search) return;
  if (!begun) {
    const [scanned, total, matched, hidden] = ["scanned", "total", "matched", "hidden"].map((name) => Number(found.dataset[name]));
    begun = { scanned, total, matched, hidden, last: {} };
  }
  more.hidden = true;
  stop.hidden = false;
  bar.hidden = false;
  moreSays.textContent = "";
  found.dataset.searching = "1";
  search = new EventSource(`${found.dataset.searchAddress}?${next}`);
  search.addEventListener("rows", (event) => {
    const { rows, state } = JSON.parse(event.data);
    show(rows, false);
    told(state, false);
  });
  search.addEventListener("progress", (event) => told(JSON.parse(event.data), false));
  search.addEventListener("done", (event) => {
    const state = JSON.parse(event.data);
    told(state, true);
    ended(state.says);
  });
  search.addEventListener("failed", (event) => ended(JSON.parse(event.data).message));
  search.onerror = () => { if (search) ended("The search was cut off: too many searches run, or the console is away."); };
}

function startSearching() {
  stop.addEventListener("click", () => ended("Stopped. The rest was not searched."));
  more.addEventListener("click", (event) => {
    if (!isQuery || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    searchOn(found.dataset.next);
  });
  const isUnfinished = !["end", "matches"].includes(found.dataset.reason) && found.dataset.next;
  if (isUnfinished && !found.dataset.problem) searchOn(`${found.dataset.next}&shown=${found.dataset.matched}`);
}

// The address holds what is asked for, and not what is left at its default.
const DEFAULTS = { isolation: "committed", view: "auto", limit: "50" };

function startAsking() {
  const form = document.getElementById("ask");
  form.addEventListener("submit", () => {
    for (const each of form.elements) {
      if (each.name && (!each.value || each.value === DEFAULTS[each.name])) each.disabled = true;
    }
  });
  addEventListener("pageshow", () => { for (const each of form.elements) each.disabled = false; });
}

// ---- following the end

const live = document.getElementById("live");
let tail = null;
let positions = new Map();
let arrived = 0;
let skipped = 0;
let seen = 0;

function place() {
  return [...positions].map(([partition, offset]) => `${partition}:${offset}`).join(",");
}

function decide(outcome) {
  for (const line of body.querySelectorAll(`tr[data-mark="open"][data-producer="${outcome.producer_id}"]`)) {
    if (Number(line.dataset.partition) !== outcome.partition || Number(line.dataset.offset) >= outcome.before) continue;
    line.dataset.mark = outcome.mark;
    line.querySelector(".state").replaceChildren(tag(outcome.mark, EXPLAINED[outcome.mark]));
  }
}

function arrive(event) {
  const round = JSON.parse(event.data);
  for (const [partition, offset] of Object.entries(round.next)) positions.set(partition, offset);
  arrived += round.rows.length;
  skipped += round.skipped;
  seen += round.seen;
  show(round.rows, true);
  round.outcomes.forEach(decide);
  says.textContent = (isQuery ? `${whole(arrived)} of ${whole(seen)} new records match` : `${whole(arrived)} new`) + (skipped ? ` · ${whole(skipped)} left out: they arrive faster than they can be shown` : "");
}

function follow() {
  if (tail || document.hidden) return;
  const query = found.dataset.query;
  tail = new EventSource(`${found.dataset.tailAddress}?${query}${query ? "&" : ""}at=${place()}`);
  tail.addEventListener("ready", () => { if (!arrived) says.textContent = "Following: new records appear here."; });
  tail.addEventListener("arrived", arrive);
  tail.addEventListener("failed", (event) => { setLive(false); moreSays.textContent = JSON.parse(event.data).message; });
  tail.onerror = () => {
    // Begin where it was cut off: the address of the stream has older positions.
    tail?.close();
    tail = null;
    if (live.getAttribute("aria-pressed") === "true") setTimeout(follow, 1000);
  };
}

function setLive(isOn) {
  live.setAttribute("aria-pressed", String(isOn));
  const address = new URL(location.href);
  if (isOn) address.searchParams.set("live", "1");
  else address.searchParams.delete("live");
  history.replaceState(null, "", address);
  if (isOn) follow();
  else { tail?.close(); tail = null; }
}

function toggleLive() {
  const isOn = live.getAttribute("aria-pressed") === "true";
  const address = new URL(live.dataset.address, location.href);
  const isAtTheEnd = !/(^|&)(from|to|left|order)=/.test(location.search.slice(1));
  if (!isOn && !isAtTheEnd) {
    address.searchParams.set("live", "1");
    location.href = address;
    return;
  }
  setLive(!isOn);
}

function startFollowing() {
  positions = new Map(found.dataset.tail.split(",").filter(Boolean).map((pair) => pair.split(":")));
  live.addEventListener("click", toggleLive);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { tail?.close(); tail = null; } else if (live.getAttribute("aria-pressed") === "true") follow();
  });
  if (found.dataset.live) setLive(true);
}

// ---- a record beside the list

let opened = null;

async function load(address) {
  const content = document.getElementById("sheet-content");
  try {
    const response = await fetch(address, { headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const record = page.getElementById("record") ?? page.querySelector("main");
    const tools = make("div", "sheet-tools");
    const link = make("a", "small", "Open as a page");
    link.href = address;
    const close = make("button", "quiet", "Close");
    close.dataset.action = "close";
    tools.append(link, close);
    const wasInside = content.contains(document.activeElement);
    content.replaceChildren(tools, ...record.childNodes);
    if (wasInside) content.querySelector("a[data-view][aria-current]")?.focus({ preventScroll: true });
    content.classList.add("record-page", "stack");
    highlight(content);
  } catch {
    content.replaceChildren(make("p", "bad", "The console does not answer."));
  }
}

async function open(link) {
  opened = link.closest("tr");
  for (const line of body.rows) line.classList.toggle("chosen", line === opened);
  await load(link.getAttribute("href"));
  if (!sheet.open) sheet.showModal();
  sheet.scrollTop = 0;
}

function startReading() {
  found.addEventListener("click", (event) => {
    const link = event.target.closest("a.record");
    if (link && !event.metaKey && !event.ctrlKey && !event.shiftKey && event.button === 0) {
      event.preventDefault();
      open(link);
    } else if (!link && !event.target.closest("input, a, button") && !String(getSelection())) {
      const inside = event.target.closest("tbody tr")?.querySelector("a.record");
      if (inside) open(inside);
    }
  });
  sheet.addEventListener("click", (event) => {
    const view = event.target.closest("a[data-view]");
    if (view) { event.preventDefault(); load(view.getAttribute("href")); }
    if (event.target === sheet) sheet.close();
  });
  document.addEventListener("keydown", (event) => {
    if (!sheet.open) return;
    const step = { ArrowDown: 1, ArrowRight: 1, j: 1, ArrowUp: -1, ArrowLeft: -1, k: -1 }[event.key];
    if (!step || event.target.closest("pre, input")) return;
    const next = step > 0 ? opened?.nextElementSibling : opened?.previousElementSibling;
    if (next) { event.preventDefault(); open(next.querySelector("a.record")); }
  });
  sheet.addEventListener("close", () => opened?.querySelector("a.record")?.focus());
}

// ---- selection

function chosen() {
  return [...body.querySelectorAll("td.pick input:checked")].map((each) => each.value);
}

function selectionChanged() {
  const places = chosen();
  document.getElementById("selection").hidden = !places.length;
  document.getElementById("selected").textContent = `${places.length} selected`;
  const replay = document.getElementById("replay");
  if (replay) replay.href = `${replay.pathname}?records=${places.join(",")}`;
}

function startSelecting() {
  const all = document.getElementById("pick-all");
  table.addEventListener("change", (event) => {
    if (event.target === all) {
      for (const each of body.querySelectorAll("td.pick input:enabled")) each.checked = all.checked;
    }
    selectionChanged();
  });
  document.getElementById("unselect").addEventListener("click", () => {
    for (const each of table.querySelectorAll("input:checked")) each.checked = false;
    selectionChanged();
  });
}

// ---- saved views

function views() {
  try { return JSON.parse(localStorage.getItem("views") ?? "[]"); } catch { return []; }
}

function listViews() {
  const list = document.getElementById("saved-list");
  list.replaceChildren();
  for (const each of views()) {
    const entry = make("li");
    const link = make("a", "wrap", `${each.name} (${each.topic})`);
    link.href = each.address;
    const remove = make("button", "quiet", "Remove");
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove ${each.name}`);
    remove.addEventListener("click", () => keepViews(views().filter((other) => other.address !== each.address)));
    entry.append(link, remove);
    list.append(entry);
  }
  if (!list.children.length) list.append(make("li", "muted", "None yet."));
}

function keepViews(all) {
  try { localStorage.setItem("views", JSON.stringify(all.slice(-50))); } catch { /* Storage may be off. */ }
  listViews();
}

function startSaving() {
  const here = () => location.pathname + location.search;
  document.getElementById("copy-link").dataset.text = location.href;
  document.getElementById("save").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = event.target.elements.name.value.trim();
    keepViews([...views().filter((each) => each.address !== here()), { name, topic: found.dataset.topic, address: here() }]);
    event.target.reset();
  });
  listViews();
}

// ---- keys

function startKeys() {
  const keys = [["l", "follow new messages"], ["u", "committed, or uncommitted too"], ["x", "select the message"], ["s", "stop the search"]];
  const help = document.querySelector("#help .pairs");
  for (const [key, text] of keys) {
    const name = make("dt");
    name.append(make("kbd", "", key));
    help?.append(name, make("dd", "", text));
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest("input:not([type=checkbox]), textarea, select")) return;
    const actions = {
      l: toggleLive,
      u: () => document.querySelector('[aria-label="Which records"] a:not([aria-current])')?.click(),
      x: () => body.querySelector("tr.chosen td.pick input")?.click(),
      s: () => { if (!stop.hidden) stop.click(); },
    };
    if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
  });
}

if (found) {
  highlight(body);
  startAsking();
  startSearching();
  startFollowing();
  startReading();
  startSelecting();
  startSaving();
  startKeys();
}
