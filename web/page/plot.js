// The speed of writing, token by token: a line that is drawn once a frame at most.

/** Tokens shown. */
const SHOWN = 160;
/** Share of the last value in the smoothed one. */
const SMOOTH = 0.8;

export class Plot {
  constructor(canvas) {
    Object.assign(this, { canvas, rates: [], last: 0, waiting: false });
    new ResizeObserver(() => this.soon()).observe(canvas);
    canvas.addEventListener('contextrestored', () => this.soon());
  }

  begin() {
    Object.assign(this, { rates: [], last: 0 });
    this.soon();
  }

  /** A token came now. */
  token() {
    const now = performance.now();
    if (this.last) {
      const rate = 1000 / Math.max(now - this.last, 0.05);
      const before = this.rates.at(-1);
      this.rates.push(before === undefined ? rate : 1 / (SMOOTH / before + (1 - SMOOTH) / rate));
    }
    this.last = now;
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
    const { canvas } = this;
    const scale = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext('2d');
    pen.scale(scale, scale);
    // Computed colours are resolved for the theme; the style sheet lends them to these properties.
    const { borderTopColor: line, color: accent, caretColor: faint } = getComputedStyle(canvas);
    const rates = this.rates.slice(-SHOWN);
    const top = Math.max(...rates, 1) * 1.15;
    pen.strokeStyle = line;
    pen.beginPath();
    for (const share of [0, 0.5, 1]) {
      const y = Math.round((height - 14) * share) + 12.5;
      pen.moveTo(0, y);
      pen.lineTo(width, y);
    }
    pen.stroke();
    if (rates.length < 2) return;
    const at = (index) => [(index / (SHOWN - 1)) * width, height - 1.5 - (rates[index] / top) * (height - 14)];
    pen.strokeStyle = accent;
    pen.lineWidth = 2;
    pen.beginPath();
    rates.forEach((_, index) => pen.lineTo(...at(index)));
    pen.stroke();
    pen.fillStyle = faint;
    pen.font = '11px system-ui, sans-serif';
    pen.fillText(`${top.toFixed(0)} tok/s`, 0, 9);
  }
}
