// Producing: a file is sent as the body of the request, so that no byte of it changes on the way.
const many = document.getElementById("many");
const file = document.getElementById("file");
const result = document.getElementById("result");

function tell(text, state) {
  result.hidden = false;
  result.className = `notice ${state}`;
  result.textContent = text;
  result.scrollIntoView({ block: "nearest" });
}

many?.addEventListener("submit", async (event) => {
  const chosen = file.files[0];
  if (!chosen) return;
  event.preventDefault();
  const fields = new URLSearchParams(new FormData(many));
  for (const name of ["lines", "kind"]) fields.delete(name);
  const button = many.querySelector("button.primary");
  button.disabled = true;
  try {
    const response = await fetch(`${many.getAttribute("action")}/file.json?${fields}`, {
      method: "POST", body: chosen, headers: { "Content-Type": "application/octet-stream" },
    });
    const answer = await response.json();
    tell(response.ok ? answer.done : answer.message, response.ok ? "good" : "bad");
    if (response.ok) many.reset();
  } catch {
    tell("The console does not answer. Look at the topic before you send the file again.", "bad");
  } finally {
    button.disabled = false;
  }
});

file?.addEventListener("change", () => {
  many.elements.lines.disabled = Boolean(file.files.length);
  if (/\.(nd)?jsonl?$/.test(file.files[0]?.name ?? "")) many.elements.format.value = "json";
});

// A transactional id is asked for only where it is used.
for (const fieldset of document.querySelectorAll("fieldset.outcome")) {
  const name = fieldset.querySelector(".wide");
  const update = () => { name.hidden = fieldset.querySelector("input:checked").value === "plain"; };
  fieldset.addEventListener("change", update);
  update();
}

// Ctrl+Enter sends the form in which it is pressed.
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.target.closest("form[method=post]")?.requestSubmit();
});
