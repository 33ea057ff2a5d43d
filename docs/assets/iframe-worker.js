// Search in pages opened as files, where browsers refuse workers: the worker's script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const scope = frame.contentWindow
      const waiting = []
      this.postMessage = (data) => waiting.push(data)
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = frame.contentDocument.createElement("script")
      script.src = url
      script.onload = () => {
        this.postMessage = (data) => scope.dispatchEvent(new MessageEvent("message", { data }))
        waiting.forEach((data) => this.postMessage(data))
      }
      frame.contentDocument.body.append(script)
    }
  }
}
