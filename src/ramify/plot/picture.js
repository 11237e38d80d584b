// Draws one figure of a notebook in colours that suit its background, again when the theme changes.
(async (id, figure, palettes, packed, version) => {
  "use strict";
  const place = document.getElementById(id);

  // As a script of the page; a page with require.js would take Plotly for a module of its own.
  function run(make) {
    const { define } = window;
    window.define = undefined;
    return new Promise((done, failed) => {
      const script = document.createElement("script");
      make(script);
      const end = (then) => { window.define = define; then(); };
      script.addEventListener("load", () => end(done));
      script.addEventListener("error", () => end(failed));
      document.head.append(script);
      if (!script.src) end(done);
    });
  }

  // The first picture of a session holds Plotly, gzipped; others use it, or load it if it is gone.
  async function unpack() {
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const code = await new Response(plain).text();
    await run((script) => { script.textContent = code; });
  }
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  async function plotly() {
    if (packed && !window.Plotly) window.ramifyPlotly ??= unpack();
    for (let i = 0; i < 50 && !window.ramifyPlotly && !window.Plotly; i++) await wait(100);
    if (!window.Plotly) await (window.ramifyPlotly ??= run((s) => { s.src = `https://cdn.plot.ly/plotly-${version}.min.js`; }));
    return window.Plotly;
  }

  // Whether what is behind the figure is dark.
  function dark() {
    for (let own = place; own; own = own.parentElement) {
      const [r, g, b, a = 1] = getComputedStyle(own).backgroundColor.match(/[\d.]+/g).map(Number);
      if (a > 0.5) return 0.3 * r + 0.59 * g + 0.11 * b < 128;
    }
    return false;
  }
  function coloured(value, colours) {
    if (typeof value === "string" && value.startsWith("var(--")) return colours[value.slice(6, -1)] ?? value;
    if (Array.isArray(value)) return value.map((v) => coloured(v, colours));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, colours)]));
    return value;
  }
  let last;
  function draw(Plotly) {
    const now = dark();
    if (now === last) return;
    last = now;
    const { data, layout } = coloured(figure, palettes[now ? 1 : 0]);
    const paper = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" };
    Plotly.react(place, data, { ...layout, ...paper }, { displayModeBar: false, responsive: true });
  }

  try {
    const Plotly = await plotly();
    draw(Plotly);
    new MutationObserver(() => draw(Plotly)).observe(document.body, { attributes: true });
  } catch {
    place.textContent = "Plotly's script is not there: run the cell of the first picture again.";
  }
})
