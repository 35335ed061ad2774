"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const data = JSON.parse(document.getElementById("data").textContent);
  const column = Object.fromEntries(data.columns.map((name, place) => [name, place]));
  const of = (row, name) => row[column[name]];
  const all = (selector, inside) => Array.from((inside || document).querySelectorAll(selector));
  const svgSpace = "http://www.w3.org/2000/svg";

  const number = (value, digits) => {
    if (typeof value !== "number") return value === null ? "" : String(value);
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-4) return value.toExponential(digits - 1);
    return value.toLocaleString("en", { maximumSignificantDigits: digits });
  };
  const node = (name, words, parent) => {
    const made = document.createElement(name);
    if (words !== undefined) made.textContent = words;
    if (parent) parent.append(made);
    return made;
  };
  const where = (at) => Object.entries(at).map(([key, value]) => `${key} ${value}`).join(", ");

  // -- models that are shown ------------------------------------------------------------------------------------------
  all("button[data-model], button[data-initial]").forEach((button) => {
    const name = button.dataset.initial ? "hide-initial" : `hide-m${button.dataset.model}`;
    button.addEventListener("click", () => {
      const hidden = root.classList.toggle(name);
      button.setAttribute("aria-pressed", String(!hidden));
      tip.hidden = true;
      all("details.table[open]").forEach(fill);
    });
  });
  const visible = (row) =>
    !root.classList.contains(`hide-m${of(row, "model")}`) && !(of(row, "initial") && root.classList.contains("hide-initial"));

  // -- coordinates that are chosen --------------------------------------------------------------------------------------
  const choose = (section) => {
    const chosen = Object.fromEntries(all("select[data-choice]", section).map((select) => [select.dataset.choice, select.value]));
    all("figure", section).forEach((figure) => {
      const panels = all(".panel[data-at]", figure);
      if (!panels.length) return;
      let any = false;
      panels.forEach((panel) => {
        const at = JSON.parse(panel.dataset.at);
        const fits = Object.entries(at).every(([key, value]) => chosen[key] === undefined || chosen[key] === value);
        panel.classList.toggle("on", fits);
        any = any || fits;
      });
      const none = figure.querySelector(".none-here");
      if (none) none.hidden = any;
    });
    all("details.table[open]", section).forEach(fill);
  };
  all("section.instrument").forEach((section) => {
    all("select[data-choice]", section).forEach((select) => select.addEventListener("change", () => choose(section)));
    choose(section);
  });

  // -- tables ------------------------------------------------------------------------------------------------------------
  function fill(details) {
    const box = details.querySelector(".scroll");
    box.replaceChildren();
    const behind = all(".panel.on", details.closest("figure")).flatMap((panel) => panel.dataset.behind.split(",").filter(Boolean).map(Number));
    const rows = behind.sort((a, b) => a - b).map((index) => [index, data.rows[index]]).filter(([, row]) => visible(row));
    const table = node("table", undefined, box);
    const head = node("tr", undefined, node("thead", undefined, table));
    ["model", "layer", "where", "value", "low", "high", "kind", "n"].forEach((name) => {
      node("th", name, head).setAttribute("scope", "col");
    });
    const body = node("tbody", undefined, table);
    rows.forEach(([index, row]) => {
      const line = node("tr", undefined, body);
      line.dataset.row = String(index);
      const model = data.models[of(row, "model")] + (of(row, "initial") ? " (random weights)" : "");
      [model, of(row, "layer") || "", where(of(row, "at")), number(of(row, "value"), 5), number(of(row, "low"), 4),
        number(of(row, "high"), 4), of(row, "kind"), of(row, "n").toLocaleString("en")].forEach((words) => node("td", words, line));
    });
  }
  all("details.table").forEach((details) => details.addEventListener("toggle", () => details.open && fill(details)));

  // -- a value under the pointer, or under the arrow keys ----------------------------------------------------------------
  const tip = document.getElementById("tip");
  let current = null, byKeys = false;
  const forget = () => {
    if (current) current.classList.remove("at");
    current = null;
    tip.hidden = true;
  };
  const put = () => {
    const at = current.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, at.left + at.width / 2 - size.width / 2), window.innerWidth - size.width - 8);
    const above = at.top - size.height - 10;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 4 ? above : at.bottom + 10}px`;
  };
  const show = (mark, keys) => {
    byKeys = keys;
    if (mark === current) return;
    forget();
    current = mark;
    mark.classList.add("at");
    const index = Number(mark.dataset.row), row = data.rows[index];
    tip.replaceChildren();
    node("b", of(row, "layer") || where(of(row, "at")) || of(row, "quantity"), tip);
    node("br", undefined, tip);
    const low = of(row, "low");
    const sign = { lower: "≥ ", upper: "≤ ", heuristic: "~ " }[of(row, "kind")] || "";
    const value = node("b", sign + number(of(row, "value"), 4), tip);
    value.dataset.value = String(of(row, "value"));
    if (low !== null) node("span", ` [${number(low, 4)}, ${number(of(row, "high"), 4)}]`, tip);
    node("br", undefined, tip);
    const model = data.models[of(row, "model")] + (of(row, "initial") ? " with random weights" : "");
    node("span", `${data.labels[of(row, "instrument")][of(row, "quantity")]} · ${model} · n = ${of(row, "n").toLocaleString("en")}`, tip);
    tip.dataset.row = String(index);
    tip.hidden = false;
    put();
  };
  const shown = (svg) => all(".mark", svg).filter((mark) => mark.getClientRects().length > 0);
  const nearest = (svg, x, y) => {
    let best = null, least = 26 * 26;
    shown(svg).forEach((mark) => {
      const box = mark.getBoundingClientRect();
      const away = (box.left + box.width / 2 - x) ** 2 + (box.top + box.height / 2 - y) ** 2;
      if (away < least) [best, least] = [mark, away];
    });
    return best;
  };
  all(".panel > svg").forEach((svg) => {
    if (!svg.querySelector(".mark")) return;
    all(".mark > title", svg).forEach((title) => title.remove());
    const title = svg.querySelector(":scope > title");
    if (title) title.remove(); // aria-label says the same, without a tooltip over the marks
    const look = (event) => {
      const mark = event.target.closest && event.target.closest(".mark") || nearest(svg, event.clientX, event.clientY);
      mark ? show(mark, false) : forget();
    };
    svg.addEventListener("pointermove", look);
    svg.addEventListener("pointerdown", look);
    svg.addEventListener("pointerleave", () => byKeys || forget());
    svg.addEventListener("blur", forget);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Escape") return forget();
      if (step === undefined) return;
      event.preventDefault();
      const marks = shown(svg).sort((a, b) => Number(a.dataset.row) - Number(b.dataset.row));
      const place = Math.min(Math.max(marks.indexOf(current) + step, 0), marks.length - 1);
      if (marks[place]) show(marks[place], true);
    });
  });
  // Scrolling takes a mark from under the pointer, but not from the keys: a figure that gets the focus scrolls into view
  // after its first arrow key, and the walk must not begin again.
  window.addEventListener("scroll", () => (byKeys && current ? put() : forget()), { passive: true });

  // -- which marks a sentence rests on -----------------------------------------------------------------------------------
  all("[data-rows][data-topic]").forEach((sentence) => {
    const marks = () => sentence.dataset.rows.split(",").filter(Boolean).flatMap((row) => all(`.mark[data-row="${row}"]`));
    sentence.addEventListener("pointerenter", () => marks().forEach((mark) => mark.classList.add("traced")));
    sentence.addEventListener("pointerleave", () => marks().forEach((mark) => mark.classList.remove("traced")));
  });

  // -- persistence diagrams ----------------------------------------------------------------------------------------------
  const slider = document.getElementById("depth-slider");
  if (slider) {
    const size = 240, pad = 30;
    const draw = () => {
      const depth = Number(slider.value) / Number(slider.max);
      data.diagrams.forEach((each) => {
        const layers = each.layers;
        const wanted = layers.reduce((best, layer) => (Math.abs(layer.depth - depth) < Math.abs(best.depth - depth) ? layer : best));
        const view = document.querySelector(`[data-view="${each.model}"]`);
        view.querySelector(".layer").textContent = wanted.layer;
        const svg = view.querySelector("svg");
        svg.setAttribute("aria-label", `Persistence diagram of ${data.models[each.model]} at ${wanted.layer}`);
        all(".bar, title", svg).forEach((old) => old.remove());
        const deaths = Object.values(wanted.bars).flat().map((bar) => bar[1]);
        const top = (Math.max(...deaths, 0) || 1) * 1.05;
        svg.querySelector(".tick").textContent = number(top, 2);
        Object.entries(wanted.bars).forEach(([dim, bars]) => bars.forEach(([birth, death]) => {
          const dot = document.createElementNS(svgSpace, "circle");
          dot.setAttribute("cx", String(pad + (birth / top) * (size - 2 * pad + 16)));
          dot.setAttribute("cy", String(size - pad - (death / top) * (size - 2 * pad + 8)));
          dot.setAttribute("r", "2.6");
          dot.setAttribute("class", `bar ${dim}`);
          svg.append(dot);
        }));
      });
      slider.setAttribute("aria-valuetext", all(".view .layer").map((layer) => layer.textContent).join(", "));
    };
    slider.addEventListener("input", draw);
    draw();
  }

  // -- the data as a file ------------------------------------------------------------------------------------------------
  const save = (words, kind, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([words], { type: kind }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const cell = (value) => {
    const words = value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    // A spreadsheet must not take a layer's name for a formula.
    const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(words) && !/^[+-]?(\d|Infinity)/.test(words) ? `'${words}` : words;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  all("button[data-download]").forEach((button) => button.addEventListener("click", () => {
    if (button.dataset.download === "json") return save(JSON.stringify(data, null, 1), "application/json", "lisse-report.json");
    const lines = [data.columns.join(",")];
    data.rows.forEach((row) => lines.push(row.map((value, place) => cell(place === column.model ? data.models[value] : value)).join(",")));
    save(lines.join("\r\n") + "\r\n", "text/csv", "lisse-report.csv");
  }));
})();
