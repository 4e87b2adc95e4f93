// Runs before anything is painted, so that a dark page does not flash.
(() => {
  let kept = null;
  try { kept = localStorage.getItem("fedast-theme"); } catch { /* storage is switched off */ }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
