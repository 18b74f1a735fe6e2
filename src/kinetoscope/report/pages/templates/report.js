"use strict";
// Tables that sort by a click on their heads, and lists that narrow while one types. Everything else is plain HTML.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const numeric = head.classList.contains("number");
      const current = head.getAttribute("aria-sort");
      const descending = current ? current === "ascending" : numeric;
      const key = (row) => {
        const value = row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
        return numeric ? Number(value) : value.toLowerCase();
      };
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => [key(row), row]);
      rows.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (descending ? -1 : 1));
      body.append(...rows.map(([, row]) => row));
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    });
  });
}
for (const box of document.querySelectorAll("input[data-filters]")) {
  box.hidden = false;
  const rows = [...document.getElementById(box.dataset.filters).tBodies[0].rows];
  box.addEventListener("input", () => {
    const wanted = box.value.toLowerCase();
    for (const row of rows) row.hidden = !row.dataset.text.toLowerCase().includes(wanted);
  });
}
