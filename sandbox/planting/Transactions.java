import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Moves messages from one topic to another in transactions, every third of which is aborted: the Python client has no
 * transactions. Run as a source file; arguments: service URL, source topic, subscription, destination topic, count.
 * Prints what was committed, one payload per line, each after "committed: ".
 */
public class Transactions {
    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[4]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).enableTransaction(true).build();
                Consumer<byte[]> consumer = client.newConsumer().topic(args[1]).subscriptionName(args[2])
                        .subscriptionType(SubscriptionType.Shared)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(args[3]).enableBatching(false)
                        .sendTimeout(0, TimeUnit.SECONDS).create()) {
            for (int number = 0; number < count; number++) {
                Transaction transaction =
                        client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().get();
                Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
                producer.newMessage(transaction).value(message.getData()).send();
                consumer.acknowledgeAsync(message.getMessageId(), transaction).get();
                if (number % 3 == 2) {
                    transaction.abort().get();
                } else {
                    transaction.commit().get();
                    System.out.println("committed: " + new String(message.getData(), StandardCharsets.UTF_8));
                }
            }
        }
    }
}
