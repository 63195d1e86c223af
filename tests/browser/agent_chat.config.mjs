// Builds Agent Chat UI, LangChain's chat page for LangGraph servers, from the sources that `npx create-agent-chat-app`
// copies into a user's folder, with the SDK that they ask for. Two things are changed in them: a link to a style sheet
// that they do not have, and a question is shown after a tool's result, too, as in the page's own later versions.
import { fileURLToPath } from "node:url";
import tailwindcss from "@tailwindcss/vite";
import { defineConfig } from "vite";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const template = here("node_modules/create-agent-chat-app/templates/vite");
const END = "@langchain/langgraph/web";

// Tailwind looks for its classes nowhere below node_modules, unless it is told to.
const scanned = {
  name: "scanned",
  enforce: "pre",
  transform: (code, id) =>
    id.endsWith("/src/index.css") ? code.replace('@import "tailwindcss";', '$&\n@source ".";') : null,
};

const RESULT = "<ToolResult message={message} />";
const QUESTION = `isLastMessage && isAgentInboxInterruptSchema(threadInterrupt?.value) &&
  <ThreadView interrupt={threadInterrupt.value} />`;
const questionAfterResult = {
  name: "question-after-result",
  enforce: "pre",
  transform: (code, id) =>
    id.endsWith("/messages/ai.tsx") && code.includes(RESULT)
      ? code.replace(RESULT, `<div className="flex flex-col gap-2">${RESULT}{${QUESTION}}</div>`)
      : null,
};

const deadLink = {
  name: "dead-link",
  transformIndexHtml: (html) => html.replace('<link href="/src/styles.css" rel="stylesheet" />', ""),
};

// All that the page takes of this package, which is a whole server.
const end = {
  name: "end",
  resolveId: (id) => (id === END ? `\0${END}` : null),
  load: (id) => (id === `\0${END}` ? 'export const END = "__end__";' : null),
};

export default defineConfig({
  root: template,
  logLevel: "error",
  plugins: [scanned, questionAfterResult, deadLink, end, tailwindcss()],
  esbuild: { jsx: "automatic" },
  resolve: {
    alias: [
      { find: /^@\//, replacement: `${template}/src/` },
      { find: /^@langchain\/langgraph-sdk(?=\/|$)/, replacement: "agent-chat-sdk" },
    ],
  },
  build: { outDir: here("build/agent_chat"), emptyOutDir: true },
});
