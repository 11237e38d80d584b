// Draws the figures in the page's own colours, again when those change; sorts and searches tables.
(async () => {
  "use strict";
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const plots = [...document.querySelectorAll("[data-figure]")];
  const touch = matchMedia("(pointer: coarse)").matches;

  // Plotly comes gzipped, which makes the page less than half as large.
  async function loadPlotly() {
    const packed = document.getElementById("plotly").textContent.trim();
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(plain).text();
    document.head.append(script);
  }

  // A copy of a figure with every "var(--name)" replaced by what it is now.
  function coloured(value, style) {
    if (typeof value === "string" && value.startsWith("var(--")) return style.getPropertyValue(value.slice(4, -1)).trim();
    if (Array.isArray(value)) return value.map((v) => coloured(v, style));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, style)]));
    return value;
  }

  function layoutOf(own, width) {
    const narrow = width < 520;
    const axis = { gridcolor: "var(--grid)", linecolor: "var(--rule)", zerolinecolor: "var(--soft)", zerolinewidth: 1, fixedrange: touch };
    const ticks = (n) => (n ? Math.min(n, narrow ? 4 : 20) : narrow ? 5 : 0);
    const axes = Object.keys(own).filter((name) => /^[xy]axis/.test(name)).map((name) =>
      [name, { ...axis, ...own[name], ...(name[0] === "x" ? { nticks: ticks(own[name].nticks) } : {}) }]);
    return {
      ...own,
      ...Object.fromEntries(axes),
      margin: { l: narrow ? 44 : 64, r: 12, t: own.showlegend ? 40 : 12, b: own.xaxis.title.text ? 44 : 28 },
      font: { family: getComputedStyle(document.body).fontFamily, size: narrow ? 12 : 13, color: "var(--ink)" },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: { bgcolor: "var(--card)", bordercolor: "var(--rule)", font: { color: "var(--ink)" }, align: "left" },
      hovermode: "closest", dragmode: touch ? false : "zoom", width: width,
    };
  }

  function draw(plot) {
    const figure = figures[plot.dataset.figure];
    const width = root.classList.contains("printing") ? 660 : plot.clientWidth;
    const style = getComputedStyle(root);
    const { data, layout } = coloured({ data: figure.data, layout: layoutOf(figure.layout, width) }, style);
    return Plotly.react(plot, data, layout, { displayModeBar: false });
  }
  const drawAll = () => Promise.all(plots.map(draw));

  function choose(select) {
    for (const plot of plots) {
      const [kind] = plot.dataset.figure.split("-");
      const { choose } = select.dataset;
      if (kind !== choose && kind !== choose.replace("caterpillar", "spread")) continue;
      plot.dataset.figure = `${kind}-${select.value}`;
      draw(plot);
    }
  }

  function sort(table, column, header) {
    const up = header.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => row.cells[column].dataset.value;
    const numbers = [...table.tBodies[0].rows].every((row) => value(row) !== "" && !isNaN(value(row)));
    const compare = numbers ? (a, b) => value(a) - value(b) : (a, b) => value(a).localeCompare(value(b), undefined, { numeric: true });
    const rows = [...table.tBodies[0].rows].sort((a, b) => (up ? compare(a, b) : compare(b, a)));
    table.tBodies[0].append(...rows);
  }

  function search(input) {
    const table = document.getElementById(input.dataset.search);
    const wanted = input.value.trim().toLowerCase();
    let found = 0;
    for (const row of table.tBodies[0].rows) {
      row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
      found += !row.hidden;
    }
    document.querySelector(`[data-count="${table.id}"]`).textContent = `${found} group${found === 1 ? "" : "s"}`;
  }

  // A table that is wider than its place says so.
  function tellWide() {
    for (const box of document.querySelectorAll(".scroll")) box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
  }

  for (const table of document.querySelectorAll("table.sortable"))
    [...table.tHead.rows[0].cells].forEach((header, column) =>
      header.querySelector("button").addEventListener("click", () => sort(table, column, header)));
  for (const input of document.querySelectorAll("[data-search]")) input.addEventListener("input", () => search(input));

  tellWide();
  for (const more of document.querySelectorAll("details")) more.addEventListener("toggle", tellWide);
  await loadPlotly();
  await drawAll();
  for (const select of document.querySelectorAll("[data-choose]")) select.addEventListener("change", () => choose(select));
  const printing = (on) => { root.classList.toggle("printing", on); drawAll(); };
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  matchMedia("print").addEventListener("change", (event) => printing(event.matches));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let waiting, wide = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === wide) return; // a phone's address bar came or went
    wide = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => { tellWide(); drawAll(); }, 150);
  });
  root.dataset.drawn = "yes";
})();
