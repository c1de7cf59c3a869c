// The speed of writing, token by token: a line that is drawn once a frame at most. It is SVG, since a canvas would be
// lost together with the model's device.

/** Tokens shown. */
const SHOWN = 160;
/** Share of the last value in the smoothed one. */
const SMOOTH = 0.8;
/** Tokens that come closer together came in one message: they share their time. */
const TOGETHER_MS = 1;
/** The drawing's own units; the style sheet stretches it. */
const [WIDTH, HEIGHT] = [320, 80];

export class Plot {
  constructor(svg, label) {
    Object.assign(this, { line: svg.querySelector('polyline'), label, rates: [], last: 0, count: 0, waiting: false });
  }

  begin() {
    Object.assign(this, { rates: [], last: 0, count: 0 });
    this.soon();
  }

  /** A token came now. */
  token() {
    const now = performance.now();
    this.count += 1;
    if (this.last && now - this.last < TOGETHER_MS) return;
    if (this.last) {
      const rate = (1000 * this.count) / (now - this.last);
      const before = this.rates.at(-1);
      this.rates.push(before === undefined ? rate : 1 / (SMOOTH / before + (1 - SMOOTH) / rate));
    }
    Object.assign(this, { last: now, count: 0 });
    this.soon();
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const rates = this.rates.slice(-SHOWN);
    const top = Math.max(...rates, 1) * 1.15;
    const at = (rate, index) => `${((index / (SHOWN - 1)) * WIDTH).toFixed(1)},${(HEIGHT - 1 - (rate / top) * (HEIGHT - 2)).toFixed(1)}`;
    this.line.setAttribute('points', rates.length < 2 ? '' : rates.map(at).join(' '));
    this.label.textContent = rates.length < 2 ? '' : `${top.toFixed(0)} tok/s`;
  }
}
