// Says in one line what the model answered, for answers of any task.

// Every answer says how it was made; what the model says has other names in each task.
const COMMON = [
  "id", "model", "version", "request_id", "status", "certified", "durable", "tier", "reason", "confidence",
  "model_digest", "attempts", "rows", "changed", "refusal", "contract",
];

export function said(answer) {
  if ("label" in answer && !("labels" in answer)) return `${answer.label} (${+(100 * answer.probability).toPrecision(4)} %)`;
  return JSON.stringify(Object.fromEntries(Object.entries(answer).filter(([name]) => !COMMON.includes(name))));
}
