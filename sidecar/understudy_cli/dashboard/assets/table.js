// A table that draws only the rows that are visible, so that 5,000 rows cost as much as 50.
//
// All text is set with textContent. Keys: arrows, Page Up, Page Down, Home and End move, Enter opens the row.

const ROW_PX = 28;
const MARGIN_ROWS = 8;
const compare = new Intl.Collator("en", { numeric: true }).compare;
let tables = 0;

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// columns: {title, text(row), order(row), width, tone(row), href(row), isNumber}. order: a number or a text by which rows
// are sorted; the text if it is missing. tone: good, bad, busy or idle: a color beside the text, which has to suffice.
export class Table {
  constructor({ label, columns, open, empty }) {
    this.columns = columns;
    this.open = open;
    this.empty = empty;
    this.rows = [];
    this.sorted = null; // {column, isReversed}; null: as the caller has ordered them
    this.active = -1;
    this.id = `table-${tables++}`;
    this.pool = [];
    this.headers = columns.map((column, index) => this.header(column, index));
    this.head = element("div", { className: "row head", role: "row" }, ...this.headers);
    this.space = element("div", { className: "space", role: "presentation" });
    this.message = element("p", { className: "empty" });
    this.body = element("div", { className: "body", role: "presentation" }, this.space, this.message);
    this.detail = element("p", { className: "detail", role: "status" }); // the whole text of the chosen row
    this.element = element("div", { className: "table", role: "grid", tabIndex: 0 }, this.head, this.body, this.detail);
    this.element.setAttribute("aria-label", label);
    this.element.setAttribute("aria-colcount", columns.length);
    this.element.style.setProperty("--columns", columns.map((column) => column.width || "minmax(0, 1fr)").join(" "));
    this.body.addEventListener("scroll", () => this.draw(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    this.space.addEventListener("click", (event) => this.onClick(event));
    new ResizeObserver(() => this.draw()).observe(this.body);
  }

  header(column, index) {
    const button = element("button", { type: "button", onclick: () => this.sortBy(index) }, column.title);
    const cell = element("span", { className: column.isNumber ? "number" : "", role: "columnheader" }, button);
    cell.setAttribute("aria-colindex", index + 1);
    return cell;
  }

  sortBy(index) {
    const column = this.columns[index];
    const isReversed = this.sorted?.column === column ? !this.sorted.isReversed : Boolean(column.isNumber);
    this.sorted = { column, isReversed };
    this.headers.forEach((cell, at) => {
      if (at === index) cell.setAttribute("aria-sort", isReversed ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    this.show(this.rows);
  }

  // rows: in the order of the caller, which holds unless the user has chosen a column.
  show(rows) {
    this.rows = rows;
    this.shown = this.sorted ? ordered(rows, this.sorted) : rows;
    this.element.setAttribute("aria-rowcount", rows.length + 1);
    this.space.style.height = `${rows.length * ROW_PX}px`;
    this.message.textContent = rows.length ? "" : this.empty();
    this.draw();
  }

  draw() {
    if (!this.shown) return;
    const { scrollTop, clientHeight } = this.body;
    const first = Math.max(0, Math.floor(scrollTop / ROW_PX) - MARGIN_ROWS);
    const count = Math.min(this.shown.length - first, Math.ceil(clientHeight / ROW_PX) + 2 * MARGIN_ROWS);
    while (this.pool.length < count) this.pool.push(this.addRow());
    this.pool.forEach((drawn, slot) => this.fill(drawn, slot < count ? first + slot : -1));
    if (this.active >= this.shown.length) this.active = this.shown.length - 1;
    if (this.active >= 0) this.element.setAttribute("aria-activedescendant", `${this.id}-${this.active}`);
    else this.element.removeAttribute("aria-activedescendant");
    const chosen = this.shown[this.active];
    const texts = chosen ? this.columns.map((column) => [column.title, column.text(chosen)]) : [];
    const detail = texts.filter(([, text]) => text && text !== "-").map((pair) => pair.join(" ")).join(" · ");
    if (this.detail.textContent !== detail) this.detail.textContent = detail;
  }

  addRow() {
    const cells = this.columns.map((column) => {
      const cell = element(column.href ? "a" : "span", { className: column.isNumber ? "number" : "", role: "gridcell" });
      if (column.href) cell.tabIndex = -1; // the keys of the table reach it
      return cell;
    });
    const row = element("div", { className: "row", role: "row" }, ...cells);
    this.space.append(row);
    return { row, cells, index: -1 };
  }

  fill(drawn, index) {
    drawn.row.hidden = index < 0;
    if (index < 0) return;
    const row = this.shown[index];
    if (drawn.index !== index) {
      drawn.index = index;
      drawn.row.id = `${this.id}-${index}`;
      drawn.row.style.transform = `translateY(${index * ROW_PX}px)`;
      drawn.row.setAttribute("aria-rowindex", index + 2);
    }
    drawn.row.classList.toggle("active", index === this.active);
    this.columns.forEach((column, at) => {
      const cell = drawn.cells[at];
      const text = column.text(row);
      if (cell.textContent !== text) {
        cell.textContent = text;
        cell.title = text.length > 16 ? text : "";
      }
      const tone = column.tone ? column.tone(row) : "";
      if ((cell.dataset.tone || "") !== tone) cell.dataset.tone = tone;
      if (column.href && cell.getAttribute("href") !== column.href(row)) cell.href = column.href(row);
    });
  }

  onClick(event) {
    const row = event.target.closest(".row");
    const drawn = this.pool.find((one) => one.row === row);
    if (!drawn) return;
    this.moveTo(drawn.index);
    if (this.open && !event.target.closest("a")) this.open(this.shown[drawn.index]);
  }

  onKey(event) {
    if (event.target !== this.element || event.altKey || event.ctrlKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(this.body.clientHeight / ROW_PX) - 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in moves) this.moveTo(this.active + moves[event.key]);
    else if (event.key === "Enter" && this.active >= 0 && this.open) this.open(this.shown[this.active]);
    else return;
    event.preventDefault();
  }

  moveTo(index) {
    this.active = Math.max(0, Math.min(this.shown.length - 1, index));
    const top = this.active * ROW_PX;
    const { scrollTop, clientHeight } = this.body;
    if (top < scrollTop) this.body.scrollTop = top;
    else if (top + ROW_PX > scrollTop + clientHeight) this.body.scrollTop = top + ROW_PX - clientHeight;
    this.draw();
  }
}

function ordered(rows, { column, isReversed }) {
  const order = column.order || column.text;
  const keyed = rows.map((row) => [order(row), row]);
  keyed.sort(([a], [b]) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return compare(String(a), String(b));
  });
  if (isReversed) keyed.reverse();
  return keyed.map(([, row]) => row);
}

export { compare };
