import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionMode;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Reads a topic by a Shared, NonDurable subscription, which no z-node knows. Run as a source file; arguments: service
 * URL, topic, subscription, how many messages there are, for how many seconds it waits for the next one at most.
 * Prints "subscribed", then "received: " and how many different messages came.
 */
public class ReadingDelayed {
    public static void main(String[] args) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build();
                Consumer<byte[]> consumer = client.newConsumer().topic(args[1]).subscriptionName(args[2])
                        .subscriptionType(SubscriptionType.Shared).subscriptionMode(SubscriptionMode.NonDurable)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            System.out.println("subscribed");
            System.out.flush();
            Set<String> found = new HashSet<>();
            while (found.size() < Integer.parseInt(args[3])) {
                Message<byte[]> message = consumer.receive(Integer.parseInt(args[4]), TimeUnit.SECONDS);
                if (message == null) {
                    break;
                }
                found.add(message.getMessageId().toString());
                consumer.acknowledge(message);
            }
            System.out.println("received: " + found.size());
        }
    }
}
