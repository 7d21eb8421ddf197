// The style of <penstock-job>. A page changes it by custom properties and ::part().

const css = `
:host {
  --_text: var(--penstock-text, #1b2430);
  --_muted: var(--penstock-muted, #55606e);
  --_surface: var(--penstock-surface, #ffffff);
  --_line: var(--penstock-line, #d5dbe3);
  --_accent: var(--penstock-accent, #1f5fbf);
  --_good: var(--penstock-good, #1a6e3c);
  --_bad: var(--penstock-bad, #b3261e);
  --_warn: var(--penstock-warn, #8a5a00);
  --_warn-text: var(--penstock-warn-text, #4d3500);
  --_warn-surface: var(--penstock-warn-surface, #fff4cc);
  display: block;
  font: var(--penstock-font, inherit);
  line-height: 1.45;
  overflow-wrap: anywhere;
}
@supports (color: light-dark(red, blue)) {
  :host {
    --_text: var(--penstock-text, light-dark(#1b2430, #e8ecf2));
    --_muted: var(--penstock-muted, light-dark(#55606e, #a9b4c2));
    --_surface: var(--penstock-surface, light-dark(#ffffff, #171d26));
    --_line: var(--penstock-line, light-dark(#d5dbe3, #374250));
    --_accent: var(--penstock-accent, light-dark(#1f5fbf, #7fb0ff));
    --_good: var(--penstock-good, light-dark(#1a6e3c, #6fd396));
    --_bad: var(--penstock-bad, light-dark(#b3261e, #ff9a92));
    --_warn: var(--penstock-warn, light-dark(#8a5a00, #f0c355));
    --_warn-text: var(--penstock-warn-text, light-dark(#4d3500, #ffe9ad));
    --_warn-surface: var(--penstock-warn-surface, light-dark(#fff4cc, #3d3010));
  }
}
:host([hidden]), [hidden] { display: none !important; }
* { box-sizing: border-box; }
.box {
  background: var(--_surface);
  border: 1px solid var(--_line);
  border-inline-start: 4px solid var(--_mood, var(--_line));
  border-radius: 6px;
  color: var(--_text);
  display: grid;
  gap: 0.5em;
  grid-template-columns: minmax(0, 1fr);
  padding: 0.75em 1em;
}
.box[data-mood="working"] { --_mood: var(--_accent); }
.box[data-mood="good"] { --_mood: var(--_good); }
.box[data-mood="bad"] { --_mood: var(--_bad); }
.box[data-mood="warning"] { --_mood: var(--_warn); }
p, dl, ul { margin: 0; }
.head { align-items: baseline; display: flex; flex-wrap: wrap; gap: 0.15em 0.75em; }
.status { font-weight: 600; outline-offset: 2px; }
.box[data-mood="good"] .status { color: var(--_good); }
.box[data-mood="bad"] .status { color: var(--_bad); }
.muted { color: var(--_muted); }
.elapsed { font-variant-numeric: tabular-nums; }
.mark {
  background: var(--_mood, var(--_muted));
  border-radius: 50%;
  display: inline-block;
  height: 0.6em;
  margin-inline-end: 0.5em;
  width: 0.6em;
}
.box[data-mood="working"] .mark { animation: breathe 1.6s ease-in-out infinite; }
@keyframes breathe { 50% { opacity: 0.25; } }
@media (prefers-reduced-motion: reduce) { .mark { animation: none !important; } }
.banner {
  background: var(--_warn-surface);
  border-radius: 4px;
  color: var(--_warn-text);
  padding: 0.5em 0.75em;
}
.bar { align-items: center; display: flex; gap: 0.75em; }
progress {
  accent-color: var(--_accent);
  appearance: none;
  background: var(--_line);
  border: 0;
  border-radius: 4px;
  flex: 1;
  height: 0.5em;
  min-width: 4em;
  overflow: hidden;
}
progress::-webkit-progress-bar { background: var(--_line); }
progress::-webkit-progress-value { background: var(--_accent); }
progress::-moz-progress-bar { background: var(--_accent); }
/* Grey, but still readable. */
.lost .known { color: var(--_muted); filter: grayscale(1); }
.lost .status, .lost .banner { color: var(--_muted) !important; }
.lost .banner { background: transparent; border: 1px solid var(--_line); }
.lost .mark { animation: none !important; }
.lost[data-mood] { --_mood: var(--_line); }
.text { white-space: pre-wrap; }
.tokens {
  border-inline-start: 2px solid var(--_line);
  max-height: 16em;
  overflow: auto;
  padding-inline-start: 0.75em;
  white-space: pre-wrap;
}
img { border-radius: 4px; display: block; height: auto; max-height: 24em; max-width: 100%; }
ul { display: grid; gap: 0.5em; padding-inline-start: 1.25em; }
dl {
  display: grid;
  gap: 0.25em 1em;
  grid-template-columns: minmax(5em, max-content) minmax(0, 1fr);
}
dt { color: var(--_muted); }
dd { margin: 0; }
a { color: var(--_accent); }
.known { display: grid; gap: 0.5em; grid-template-columns: minmax(0, 1fr); }
.actions { align-items: center; display: flex; flex-wrap: wrap; gap: 0.5em; }
button {
  background: transparent;
  border: 1px solid var(--_muted);
  border-radius: 4px;
  color: var(--_text);
  cursor: pointer;
  font: inherit;
  min-height: 2.2em;
  padding: 0.25em 0.9em;
}
button[aria-disabled="true"] { color: var(--_muted); cursor: default; }
:focus-visible { outline: 2px solid var(--_accent); outline-offset: 2px; }
.heard {
  clip-path: inset(50%);
  height: 1px;
  overflow: hidden;
  position: absolute;
  white-space: nowrap;
  width: 1px;
}
@media (forced-colors: active) {
  .mark { forced-color-adjust: none; }
  progress { border: 1px solid; }
}
`;

let sheet = null;

/** Create one style sheet for all elements; a strict policy would refuse a style element. */
export function adoptStyle(root) {
  if (sheet === null) {
    sheet = new CSSStyleSheet();
    sheet.replaceSync(css);
  }
  root.adoptedStyleSheets = [sheet];
}
