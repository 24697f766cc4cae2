// Checks: a form is sent in the background, and the events of its answer are shown as they come.
const FINDINGS_MAX = 200;

function part(form, name) { return form.querySelector(`[data-${name}]`); }

function show(form, name, data) {
  const bar = form.querySelector("progress");
  if (data.total) { bar.max = data.total; bar.value = data.done ?? 0; } else if (name === "progress") bar.removeAttribute("value");
  if (name === "progress") part(form, "at").textContent = data.at ?? `${data.elapsed_seconds} s`;
  if (name === "finding" && part(form, "findings").children.length < FINDINGS_MAX) {
    const item = document.createElement("li");
    item.textContent = data.text + (data.command ? ` ${data.command}` : "");
    if (data.address) {
      const link = document.createElement("a");
      link.href = data.address;
      link.textContent = " Look";
      item.append(link);
    }
    part(form, "findings").append(item);
  }
  if (name === "result" || name === "failed") {
    const good = name === "result" && data.good;
    part(form, "result").textContent = data.text ?? data.message;
    part(form, "result").className = good ? "good" : "bad";
    bar.max = 1; bar.value = 1;
    if (data.details) {
      part(form, "details").textContent = typeof data.details === "string" ? data.details : JSON.stringify(data.details, null, 2);
      part(form, "details").hidden = false;
    }
  }
}

async function follow(form, response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const name = /^event: (.*)$/m.exec(event)?.[1];
      const data = /^data: (.*)$/m.exec(event)?.[1];
      if (name && data) show(form, name, JSON.parse(data));
    }
  }
}

async function run(form) {
  const abort = new AbortController();
  const [start, stop] = [form.querySelector("button.primary"), part(form, "stop")];
  part(form, "outcome").hidden = false;
  part(form, "findings").replaceChildren();
  part(form, "result").textContent = "";
  part(form, "details").hidden = true;
  start.disabled = true;
  stop.hidden = false;
  stop.onclick = () => abort.abort();
  try {
    const response = await fetch(`${form.getAttribute("action")}.json`, {
      method: "POST", body: new URLSearchParams(new FormData(form)), signal: abort.signal,
    });
    if (response.headers.get("Content-Type")?.startsWith("text/event-stream")) await follow(form, response);
    else show(form, "failed", await response.json());
  } catch (error) {
    show(form, "failed", { message: abort.signal.aborted ? "Stopped." : `The console does not answer: ${error.message}` });
  } finally {
    start.disabled = false;
    stop.hidden = true;
  }
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-check]")) return;
  event.preventDefault();
  run(event.target);
});
