// Asks an agent what is in a file, and hears each answer as it comes: node stream.mjs URL FILE [MODEL]
import { readFile } from "node:fs/promises";

import { said } from "./said.mjs";

const [url, file, model = "digits"] = process.argv.slice(2);
if (!file) {
  console.error("usage: node stream.mjs URL FILE [MODEL], such as: node stream.mjs http://127.0.0.1:8070 digit.png");
  process.exit(1);
}

const token = process.env.FIRSTLINE_TOKEN;
const response = await fetch(new URL(`/firstline/v1/models/${encodeURIComponent(model)}/infer?wait=first`, url), {
  method: "POST",
  headers: { Accept: "text/event-stream", ...(token && { Authorization: `Bearer ${token}` }) },
  body: await readFile(file),
});
if (!response.ok) {
  const { code, error } = await response.json();
  throw new Error(`${code}: ${error}`);
}

let held = "";
for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
  const events = (held + piece).split("\n\n");
  held = events.pop();
  for (const event of events) {
    const data = event.split("\n").find((line) => line.startsWith("data: "));
    if (!data) continue; // the agent says that it is alive
    const answer = JSON.parse(data.slice("data: ".length));
    console.log(`${said(answer)}, ${answer.tier}: ${answer.status}`);
  }
}
