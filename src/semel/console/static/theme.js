// Chooses light or dark before the page is drawn. A classic script: modules run too late for that.
(function () {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  function apply() {
    let chosen = null;
    try { chosen = localStorage.getItem("theme"); } catch { /* Storage may be off. */ }
    const dark = chosen ? chosen === "dark" : query.matches;
    root.dataset.theme = dark ? "dark" : "light";
  }
  apply();
  query.addEventListener("change", apply);
  window.toggleTheme = function () {
    const next = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", next); } catch { /* Then it lasts for this page. */ }
    root.dataset.theme = next;
    root.dispatchEvent(new CustomEvent("themechange"));
  };
})();
