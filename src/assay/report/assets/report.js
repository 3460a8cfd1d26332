(() => {
  "use strict";
  const all = (selector, from) => Array.from((from || document).querySelectorAll(selector));
  const keep = {
    get(key) { try { return window.sessionStorage.getItem("assay." + key); } catch (_) { return null; } },
    set(key, value) { try { window.sessionStorage.setItem("assay." + key, value); } catch (_) { /* no storage, no memory */ } },
  };

  // theme
  const themes = ["system", "light", "dark"];
  const button = document.getElementById("theme");
  const dress = (theme) => {
    if (theme === "system") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", theme);
    button.textContent = "Theme: " + theme;
    keep.set("theme", theme);
  };
  dress(themes.includes(keep.get("theme")) ? keep.get("theme") : "system");
  button.addEventListener("click", () => {
    const now = document.documentElement.getAttribute("data-theme") || "system";
    dress(themes[(themes.indexOf(now) + 1) % themes.length]);
  });

  // sorting: numbers by value, words as words, what is missing always last
  const value = (row, column) => {
    const cell = row.children[column];
    return cell.dataset.value !== undefined ? cell.dataset.value : cell.textContent.trim();
  };
  const sort = (table, column, order) => {
    const numeric = table.tHead.rows[0].cells[column].classList.contains("num");
    const sign = order === "descending" ? -1 : 1;
    const rows = Array.from(table.tBodies[0].rows).map((row, at) => ({ row, at, key: value(row, column) }));
    rows.sort((a, b) => {
      if (a.key === "" || b.key === "") return (a.key === "") - (b.key === "") || a.at - b.at;
      if (!numeric) return sign * a.key.localeCompare(b.key, undefined, { numeric: true }) || a.at - b.at;
      const [x, y] = [Number(a.key), Number(b.key)];
      return x === y ? a.at - b.at : sign * (x < y ? -1 : 1);
    });
    table.tBodies[0].append(...rows.map((entry) => entry.row));
    for (const cell of table.tHead.rows[0].cells) cell.setAttribute("aria-sort", "none");
    table.tHead.rows[0].cells[column].setAttribute("aria-sort", order);
  };
  const tables = all("table.sortable");
  tables.forEach((table, number) => {
    Array.from(table.tHead.rows[0].cells).forEach((cell, column) => {
      cell.querySelector("button").addEventListener("click", () => {
        const order = cell.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
        sort(table, column, order);
        keep.set("sort" + number, column + " " + order);
      });
    });
    const kept = (keep.get("sort" + number) || "").split(" ");
    if (kept.length === 2 && table.tHead.rows[0].cells[Number(kept[0])]) sort(table, Number(kept[0]), kept[1]);
  });

  // filters
  const form = document.querySelector("form.controls");
  if (form) {
    const boxes = all("input[type=checkbox]", form);
    const filtered = all("[data-method], [data-data]").filter((element) => !form.contains(element));
    const status = document.getElementById("shown");
    const apply = () => {
      const off = { method: new Set(), data: new Set() };
      for (const box of boxes) if (!box.checked) off[box.name].add(box.value);
      for (const element of filtered) {
        const { method, data } = element.dataset;
        element.classList.toggle("off", (method !== undefined && off.method.has(method)) || (data !== undefined && off.data.has(data)));
      }
      const runs = all("details.run");
      const shown = runs.filter((run) => !run.classList.contains("off")).length;
      status.textContent = shown === runs.length ? "All " + runs.length + " runs shown" : shown + " of " + runs.length + " runs shown";
      keep.set("off", JSON.stringify({ method: [...off.method], data: [...off.data] }));
    };
    try {
      const kept = JSON.parse(keep.get("off") || "{}");
      for (const box of boxes) if ((kept[box.name] || []).includes(box.value)) box.checked = false;
    } catch (_) { /* a memory that cannot be read is none */ }
    form.addEventListener("change", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("click", (event) => {
      const name = event.target.dataset && event.target.dataset.all;
      if (!name) return;
      for (const box of boxes) if (box.name === name) box.checked = true;
      apply();
    });
    apply();
  }

  // values of marks: by pointer, and by arrow keys in a chart that has the focus
  const tip = document.getElementById("tip");
  let here = null;
  const show = (mark) => {
    if (here && here !== mark) here.classList.remove("here");
    here = mark;
    if (!mark) { tip.hidden = true; return; }
    mark.classList.add("here");
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const at = mark.getBoundingClientRect();
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, at.left + at.width / 2 - box.width / 2), window.innerWidth - box.width - 8);
    const above = at.top - box.height - 10;
    tip.style.left = left + "px";
    tip.style.top = (above > 4 ? above : at.bottom + 10) + "px";
  };
  document.addEventListener("pointerover", (event) => {
    const mark = event.target.closest && event.target.closest("[data-tip]");
    if (mark || (here && !here.closest("svg").matches(":focus"))) show(mark);
  });
  document.addEventListener("keydown", (event) => {
    const chart = document.activeElement && document.activeElement.closest && document.activeElement.closest("svg.chart");
    if (!chart) return;
    if (event.key === "Escape") { show(null); return; }
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const marks = all("[data-tip]", chart).filter((mark) => !mark.closest(".off"));
    if (marks.length) show(marks[(marks.indexOf(here) + step + marks.length) % marks.length]);
  });
  document.addEventListener("focusout", () => show(null));
  document.addEventListener("scroll", () => show(here), { passive: true });

  // open or close all runs
  const opener = document.getElementById("open-all");
  if (opener) opener.addEventListener("click", () => {
    const open = opener.textContent === "Open all";
    for (const run of all("details.run")) run.open = open && !run.classList.contains("off");
    opener.textContent = open ? "Close all" : "Open all";
  });

  // a page that is served asks for news
  const live = document.querySelector("meta[name=assay-live]");
  if (live) {
    const kept = (keep.get("open") || "").split(" ");
    for (const run of all("details")) if (run.id && kept.includes(run.id)) run.open = true;
    window.scrollTo({ top: Number(keep.get("scroll") || 0), behavior: "instant" });
    const ask = async () => {
      try {
        const answer = await fetch("state", { cache: "no-store" });
        if (answer.ok && (await answer.json()).token !== live.content) {
          keep.set("scroll", String(window.scrollY));
          keep.set("open", all("details[open]").map((run) => run.id).join(" "));
          window.location.reload();
          return;
        }
      } catch (_) { /* the server is gone; the page stays */ }
      window.setTimeout(ask, 2000);
    };
    window.setTimeout(ask, 2000);
  }
})();
